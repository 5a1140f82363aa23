"""Shapes and small numbers that follow from a graph without running it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from little_graphs import FLOAT, model, node, tensor
from onnx import ModelProto, TensorProto, helper

from conformance.graphs.weights.wiring import Wiring
from conformance.models.model_graph import read_graph
from conformance.models.sizes import Sizes

NUMBERS = [
    tensor("two", np.array(2.0, np.float32)),
    tensor("last", np.array([2], np.int64)),
    tensor("two_whole", np.array(2, np.int64)),
    tensor("one", np.array([1], np.int64)),
    tensor("rest", np.array([-1, 1, 4, 3], np.int64)),
]


def sizes(made: ModelProto) -> Sizes:
    wiring = Wiring(made.graph, Path())
    return Sizes(made, wiring, wiring.constant)


def of_tokens(*nodes: object) -> Sizes:
    """The sizes of a graph whose input ``x`` has 12 channels."""
    made = model(list(nodes), inputs=(("x", FLOAT, ["b", "s", 12]),), tensors=NUMBERS)  # type: ignore[arg-type]  # nodes
    return sizes(made)


def test_a_scale_that_is_computed_from_a_size_is_a_number() -> None:
    """1 over the root of the last axis, as tracing writes it, is known where that axis is."""
    known = of_tokens(
        node("Shape", "x", "shape"),
        node("Gather", "shape last", "width"),
        node("Cast", "width", "float", to=TensorProto.FLOAT),
        node("Sqrt", "float", "root"),
        node("Reciprocal", "root", "scale"),
    )
    scale = known.numbers("scale")
    assert scale is not None
    assert scale.item() == 1 / math.sqrt(12)


def test_sizes_that_nobody_knows_are_no_numbers() -> None:
    """The first axis has a name alone: what is computed from it is NaN, not a guess."""
    known = of_tokens(node("Shape", "x", "shape"), node("Neg", "shape", "less"))
    less = known.numbers("less")
    assert less is not None
    assert np.isnan(less).tolist() == [True, True, False]


def test_what_values_reach_is_no_number() -> None:
    """The sum of an input has no number."""
    assert of_tokens(node("ReduceSum", "x", "sum", keepdims=0)).numbers("sum") is None


def test_heads_that_are_cut_out_of_a_width_are_counted() -> None:
    """A ``Reshape`` to computed sizes with -1 for the heads: 12 channels are 3 heads of 4."""
    goal = tensor("goal", np.array([-1, 4], np.int64))
    made = model(
        [
            node("Shape", "x", "shape", start=0, end=2),
            node("Concat", "shape goal", "sizes", axis=0),
            node("Reshape", "x sizes", "heads"),
            node("Transpose", "heads", "turned", perm=[0, 2, 1, 3]),
        ],
        inputs=(("x", FLOAT, ["b", "s", 12]),),
        tensors=[goal],
    )
    turned = sizes(made).shapes["turned"]
    assert turned is not None
    assert (turned[1], turned[3]) == (3, 4)


def test_a_part_may_leave_out_its_axes_or_have_them_as_attributes() -> None:
    """Steps are no axes where those are left out; before opset 10 a ``Slice`` has no inputs."""
    bounds = [
        tensor("starts", np.zeros(3, np.int64)),
        tensor("ends", np.full(3, 2**63 - 1, np.int64)),
        tensor("steps", np.array([1, 1, 2], np.int64)),
    ]
    inputs = (("x", FLOAT, ["b", "s", 12]),)
    by_steps = helper.make_node("Slice", ["x", "starts", "ends", "", "steps"], ["part"])
    known = sizes(model([by_steps], inputs=inputs, tensors=bounds))
    assert (known.shapes["part"] or ())[-1] == 6
    old = node("Slice", "x", "part", starts=[0], ends=[4], axes=[2])
    known = sizes(model([old], inputs=inputs, opset=9))
    assert (known.shapes["part"] or ())[-1] == 4


def test_every_operator_of_the_standard_has_a_shape() -> None:
    """Behind a node of onnxruntime: an axis that is taken out, one that is chosen, and parts."""
    known = of_tokens(
        node("QuickGelu", "x", "bent", domain="com.microsoft"),
        node("Reshape", "bent rest", "apart"),
        node("Squeeze", "apart one", "flat"),
        node("Gather", "flat two_whole", "chosen", axis=1),
        node("Split", "flat", "left right", axis=1, num_outputs=2),
    )
    assert [known.shapes[name] for name in ("flat", "chosen", "right")] == [
        (None, 4, 3),
        (None, 3),
        (None, 2, 3),
    ]


def test_what_is_fused_with_an_activation_has_the_shape_of_its_operator() -> None:
    """``FusedGemm`` is ``Gemm``; ``FusedMatMul`` also turns its operands."""
    square = tensor("square", np.ones((8, 12), np.float32))
    fused = {"domain": "com.microsoft", "transB": 1}
    nodes = [
        node("FusedGemm", "x square", "bent", activation="Relu", **fused),
        node("FusedMatMul", "x square", "turned", **fused),
    ]
    shapes = sizes(model(nodes, inputs=(("x", FLOAT, [5, 12]),), tensors=[square])).shapes
    assert (shapes["bent"], shapes["turned"]) == ((5, 8), (5, 8))


def test_whole_numbers_are_divided_as_whole_numbers() -> None:
    """Half of five heads are two, and twice these are four."""
    numbers = [tensor("five", np.array([5], np.int64)), tensor("two", np.array([2], np.int64))]
    nodes = [node("Div", "five two", "half"), node("Mul", "half two", "even")]
    known = sizes(model(nodes, inputs=(("x", FLOAT, [1]),), tensors=numbers))
    even = known.numbers("even")
    assert even is not None
    assert even.tolist() == [4.0]


def test_an_axis_of_one_is_taken_out_alone() -> None:
    """``Squeeze`` with axes leaves the others as they are."""
    tensors = [tensor("one", np.ones((1, 1), np.int64)), tensor("axes", np.array([0], np.int64))]
    nodes = [node("Squeeze", "one axes", "row")]
    row = sizes(model(nodes, inputs=(("x", FLOAT, [1]),), tensors=tensors)).numbers("row")
    assert row is not None
    assert row.shape == (1,)


def test_a_node_that_does_not_fit_its_inputs_has_no_shape() -> None:
    """A graph may contradict itself: what reads its sizes does not raise for that."""
    bounds = [tensor("at", np.array([0], np.int64)), tensor("axes", np.array([7], np.int64))]
    inputs = (("x", FLOAT, ["b", "s", 12]),)
    nodes = [node("Slice", "x at at axes", "part"), node("Slice", "x at at at at", "none")]
    known = sizes(model(nodes, inputs=inputs, tensors=bounds))
    assert known.shapes.get("part") in (None, ())


def test_parts_that_are_put_together_are_as_wide_as_before() -> None:
    """Four of 12 channels are turned, as rotary positions do, and the others follow."""
    numbers = {"zero": 0, "four": 4, "end": 2**62, "axis": 2}
    made = model(
        [
            node("Slice", "x zero four axis", "first"),
            node("Neg", "first", "turned"),
            node("Slice", "x four end axis", "rest"),
            node("Concat", "turned rest", "whole", axis=-1),
        ],
        inputs=(("x", FLOAT, ["b", "s", 12]),),
        tensors=[tensor(name, np.array([value], np.int64)) for name, value in numbers.items()],
    )
    shapes = sizes(made).shapes
    assert [shapes[name][-1] for name in ("first", "rest", "whole")] == [4, 8, 12]  # type: ignore[index]  # all are known


@pytest.mark.parametrize("name", ["encoder", "encoder-decoder"])
def test_shapes_of_later_layers_follow_from_the_first(
    name: str, export_of: Callable[..., Path]
) -> None:
    """Tracing computes each ``Reshape`` from sizes: the last product still has four axes."""
    graph = read_graph(export_of(name))
    products = [node for node in graph.model.graph.node if node.op_type == "Softmax"]
    assert {graph.rank(node.output[0]) for node in products} == {4}
