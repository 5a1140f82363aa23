"""The nodes of a graph as a network: producers, consumers and reaching inputs of tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from ..parsing import embedded
from ..protocol import Array


class UnreadableError(Exception):
    """Weights cannot be read from the structure; the message gives the reason."""


Node = onnx.NodeProto

# Operators whose results are independent of their inputs' values.
SHAPE_OPERATORS: Final = frozenset({"Shape", "Size", "ConstantOfShape", "EyeLike"})
# By operator and place of the result: the place of the only input it is made of.
_MADE_OF_ONE: Final = {("EmbedLayerNormalization", 1): 7}  # the keys of each item, of the mask
_CONSTANT_ATTRIBUTES: Final = ("value", "value_float", "value_floats", "value_int", "value_ints")


@dataclass(frozen=True, eq=False)
class Wiring:
    """A graph with its local functions written out; ``folder`` holds its external data."""

    graph: onnx.GraphProto
    folder: Path

    @cached_property
    def producer(self) -> dict[str, Node]:
        """The node producing each tensor."""
        return {name: node for node in self.graph.node for name in node.output if name}

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each tensor, also inside a subgraph."""
        result: dict[str, list[Node]] = defaultdict(list)
        for node in self.graph.node:
            for name in _read_by(node):
                result[name].append(node)
        return result

    @cached_property
    def initializers(self) -> dict[str, onnx.TensorProto]:
        """The stored tensors by name."""
        return {tensor.name: tensor for tensor in self.graph.initializer}

    @cached_property
    def ordered(self) -> list[Node]:
        """The nodes sorted topologically: converters append nodes at the end."""
        unmade = {name for node in self.graph.node for name in node.output if name}
        waiting, result = list(self.graph.node), list[Node]()
        while waiting:
            late = []
            for node in waiting:
                if unmade.isdisjoint(_read_by(node)):
                    result.append(node)
                    unmade.difference_update(node.output)
                else:
                    late.append(node)
            if len(late) == len(waiting):  # a circle, which no runtime opens
                return [*result, *late]
            waiting = late
        return result

    @cached_property
    def reached(self) -> dict[str, frozenset[str]]:
        """The inputs whose *values* reach each tensor; their sizes do not count."""
        stored = self.initializers
        result = {port.name: frozenset({port.name}) for port in self.graph.input}
        result.update({name: frozenset() for name in stored})
        for node in self.ordered:
            inputs = frozenset[str]().union(
                *(result.get(name, frozenset()) for name in _read_by(node))
            )
            if node.op_type in SHAPE_OPERATORS:
                inputs = frozenset()
            result.update({name: inputs for name in node.output if name})
            for at, name in enumerate(node.output):
                place = _MADE_OF_ONE.get((node.op_type, at))
                if name and place is not None:
                    one = node.input[place] if place < len(node.input) else ""
                    result[name] = result.get(one, frozenset())
        return result

    def reaching(self, name: str, among: frozenset[str]) -> frozenset[str]:
        """The inputs among some whose values reach a tensor."""
        return self.reached.get(name, frozenset()) & among

    def above(self, *names: str) -> set[str]:
        """All tensors that some tensors are computed from, themselves included."""
        result, waiting = set(names), list(names)
        while waiting:
            node = self.producer.get(waiting.pop())
            fresh = set(_read_by(node)) - result if node is not None else set()
            result |= fresh
            waiting += fresh
        return result

    def constant(self, name: str) -> Array | None:
        """Return the value of an initializer or ``Constant`` node, None for any other tensor."""
        if (tensor := self.initializers.get(name)) is not None:
            return numpy_helper.to_array(embedded(tensor, self.folder))
        node = self.producer.get(name)
        if node is None or node.op_type != "Constant":
            return None
        values = attributes(node)
        return next(
            (np.asarray(values[key]) for key in _CONSTANT_ATTRIBUTES if key in values), None
        )


def attributes(node: Node) -> dict[str, Any]:
    """A node's attributes as Python values, tensors as arrays, texts as ``str``."""
    result: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        result[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return result


def _read_by(node: Node) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for graph in graphs:
            made = {name for inner in graph.node for name in inner.output}
            made |= {port.name for port in graph.input} | {t.name for t in graph.initializer}
            read = {name for inner in graph.node for name in _read_by(inner)}
            read |= {port.name for port in graph.output}
            yield from sorted(read - made)
