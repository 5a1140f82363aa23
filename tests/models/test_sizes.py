"""Shapes and small numbers that follow from a graph without running it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from little_graphs import FLOAT, model, node, tensor
from onnx import ModelProto, TensorProto

from conformance.graphs.weights.wiring import Wiring
from conformance.models.model_graph import read_graph
from conformance.models.sizes import Sizes

NUMBERS = [tensor("two", np.array(2.0, np.float32)), tensor("last", np.array([2], np.int64))]


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
