"""A graph of one operator, made for the call at hand: sizes are free, everything else is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper

Array = np.ndarray[Any, Any]
Attribute = int | float | str
STANDARD_DOMAIN: Final = ""
CONTRIB_DOMAIN: Final = "com.microsoft"
# What graphs of contrib operators import of the standard domain: they have no node of it.
BESIDE_CONTRIB: Final = 21
_OTHER_OUTPUTS_RANK: Final = 4


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator at a version of its domain, with its schema's inputs and outputs in order."""

    name: str
    domain: str = STANDARD_DOMAIN
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node: what two calls must share to run the same graph.

    ``inputs`` are the names of the inputs given, each with its ONNX element type and rank;
    ``outputs`` the outputs asked for, ``attributes`` sorted pairs.
    """

    operator: Operator
    inputs: tuple[tuple[str, int, int], ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...]


def node_for(
    operator: Operator,
    feeds: Mapping[str, Array],
    *,
    outputs: tuple[str, ...],
    attributes: Mapping[str, Attribute],
) -> Node:
    """The node that takes these feeds; raises ValueError for a name its operator does not have."""
    for name in (*feeds, *outputs):
        if name not in operator.inputs + operator.outputs:
            msg = f"{operator.name} has no input or output {name!r}"
            raise ValueError(msg)
    given = {
        name: (helper.np_dtype_to_tensor_dtype(feed.dtype), feed.ndim)
        for name, feed in feeds.items()
    }
    return Node(
        operator=operator,
        inputs=tuple((name, *given[name]) for name in operator.inputs if name in given),
        outputs=tuple(name for name in operator.outputs if name in outputs),
        attributes=tuple(sorted(attributes.items())),
    )


@lru_cache(maxsize=256)
def graph_of(node: Node) -> ModelProto:
    """A model whose only node is this one, every axis of every input and output free.

    The first output has as many axes as the first input; caches and scores have four.
    """
    operator = node.operator
    given = [name for name, *_ in node.inputs]
    proto = helper.make_node(
        operator.name,
        _in_place(operator.inputs, given),
        _in_place(operator.outputs, node.outputs),
        domain=operator.domain,
    )
    proto.attribute.extend(helper.make_attribute(*pair) for pair in node.attributes)
    inputs = [_free(*described) for described in node.inputs]
    _, element_type, rank = node.inputs[0]
    outputs = [
        _free(name, element_type, rank if name == operator.outputs[0] else _OTHER_OUTPUTS_RANK)
        for name in node.outputs
    ]
    graph = helper.make_graph([proto], f"one_{operator.name}", inputs, outputs)
    imports = _imports(operator)
    return helper.make_model(
        graph,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True),
        producer_name="attention-conformance",
    )


def _in_place(names: tuple[str, ...], present: list[str] | tuple[str, ...]) -> list[str]:
    """Each name where the schema has it, "" for what is absent, nothing after the last one."""
    last = max(names.index(name) for name in present)
    return [name if name in present else "" for name in names[: last + 1]]


def _free(name: str, element_type: int, rank: int) -> ValueInfoProto:
    axes = [f"{name}_{axis}" for axis in range(rank)]
    return helper.make_tensor_value_info(name, element_type, axes)


def _imports(operator: Operator) -> list[Any]:
    own = helper.make_opsetid(operator.domain, operator.version)
    if operator.domain == STANDARD_DOMAIN:
        return [own]
    return [helper.make_opsetid(STANDARD_DOMAIN, BESIDE_CONTRIB), own]
