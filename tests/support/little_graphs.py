"""Little ONNX graphs, made with onnx.helper: correct ones, broken ones and hostile ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
Ports = Sequence[tuple[str, int, Sequence[Any] | None]]
FOREVER = 2**62


def model(
    nodes: Sequence[NodeProto],
    inputs: Ports = (("x", FLOAT, ["n"]),),
    outputs: Ports = (("y", FLOAT, ["n"]),),
    *,
    tensors: Sequence[TensorProto] = (),
    opset: int = 20,
    ir_version: int = 10,
    domains: Sequence[str] = (),
) -> ModelProto:
    """A model of some nodes; by default from a vector ``x`` to a vector ``y``."""
    graph = helper.make_graph(
        nodes,
        "little",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs],
        initializer=list(tensors),
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node; the names of its inputs and outputs in one text each, apart by spaces."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def tensor(name: str, values: Any) -> TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(values), name)


def saved(made: ModelProto, path: Path) -> Path:
    """The path of a model that was written there."""
    onnx.save(made, path)
    return path


def plus_one() -> ModelProto:
    """``y = x·x + 1``, with ``square`` inside the graph."""
    nodes = [node("Mul", "x x", "square"), node("Add", "square one", "y")]
    return model(nodes, tensors=[tensor("one", np.ones(1, np.float32))])


def same(dtype: int) -> ModelProto:
    """``y = x`` in a dtype."""
    return model([node("Identity", "x", "y")], [("x", dtype, ["n"])], [("y", dtype, ["n"])])


def endless() -> ModelProto:
    """A loop whose condition stays true, after which ``y = x``."""
    body = helper.make_graph(
        [node("Identity", "go", "going"), node("Identity", "held", "holding")],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("held", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("holding", FLOAT, None),
        ],
    )
    tensors = [tensor("turns", np.int64(FOREVER)), tensor("yes", np.array(True))]  # noqa: FBT003
    return model([node("Loop", "turns yes x", "y", body=body)], tensors=tensors)


def endless_when_long(longest: int) -> ModelProto:
    """``y = x``, after an endless loop when ``x`` has more elements than that."""
    made = endless()
    nodes = [
        node("Size", "x", "size"),
        node("Greater", "size most", "yes"),
        made.graph.node[0],
    ]
    tensors = [tensor("turns", np.int64(FOREVER)), tensor("most", np.int64(longest))]
    return model(nodes, tensors=tensors)


def huge(elements: int) -> ModelProto:
    """``y = x`` plus a sum over that many elements that must lie in memory first."""
    nodes = [
        node("Expand", "x shape", "wide"),
        node("Tanh", "wide", "bent"),
        node("ReduceSum", "bent", "sum", keepdims=0),
        node("Add", "x sum", "y"),
    ]
    ports = [("x", FLOAT, [1])], [("y", FLOAT, [1])]
    return model(nodes, *ports, tensors=[tensor("shape", np.array([elements], np.int64))])


def dividing() -> ModelProto:
    """``y = x``, after the least int64 was divided by ``len(x) - 4``.

    With three elements that is -1, the quotient does not fit, and the processor stops the process:
    onnxruntime 1.31 looks for a divisor of zero only.
    """
    nodes = [
        node("Size", "x", "size"),
        node("Sub", "size four", "divisor"),
        node("Div", "least divisor", "quotient"),
        node("Cast", "quotient", "number", to=FLOAT),
        node("Mul", "number zero", "nothing"),
        node("Add", "x nothing", "y"),
    ]
    tensors = [
        tensor("four", np.int64(4)),
        tensor("least", np.int64(np.iinfo(np.int64).min)),
        tensor("zero", np.float32(0)),
    ]
    return model(nodes, tensors=tensors)
