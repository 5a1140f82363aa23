"""The attention around a softmax: its masks, its scale, its cap, and why one cannot be cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from little_graphs import node, saved, tensor
from onnx import NodeProto
from whole_models import masks, only, token_graph, written

from conformance.models.sites import find_sites

SOFTMAX = node("Softmax", "logits", "weights", axis=-1)
HALF = 0.5


MASKED: dict[str, tuple[Sequence[NodeProto], list[tuple[str, str, str]]]] = {
    "none": ([node("Mul", "scores half", "logits"), SOFTMAX], []),
    "added": ([node("Add", "scores bias", "logits"), SOFTMAX], [("bias", "BHQK", "bias")]),
    "chosen": (
        [node("Where", "allowed scores low", "logits"), SOFTMAX],
        [("keep", "B1QK", "allowed")],
    ),
    "hidden": (
        [
            node("Not", "allowed", "hidden"),
            node("Where", "hidden low scores", "logits"),
            SOFTMAX,
        ],
        [("drop", "B1QK", "hidden")],
    ),
    "chosen, then added": (
        [
            node("Where", "allowed nothing low", "fill"),
            node("Add", "scores fill", "logits"),
            SOFTMAX,
        ],
        [("keep", "B1QK", "allowed")],
    ),
    "a bias that a mask fills": (
        [
            node("Where", "allowed bias low", "fill"),
            node("Add", "fill scores", "logits"),
            SOFTMAX,
        ],
        [("keep", "B1QK", "allowed"), ("bias", "BHQK", "bias")],
    ),
    "two sums": (
        [
            node("Add", "scores bias", "sum"),
            node("Where", "allowed nothing low", "fill"),
            node("Add", "sum fill", "logits"),
            SOFTMAX,
        ],
        [("bias", "BHQK", "bias"), ("keep", "B1QK", "allowed")],
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks_enter_where_they_are_chosen_by(name: str, tmp_path: Path) -> None:
    """A fill with numbers belongs to the attention, what it chooses by and biases are inputs."""
    middle, expected = MASKED[name]
    assert masks(only(written(tmp_path / "graph.onnx", middle))) == expected


@pytest.mark.parametrize(
    ("middle", "scale"),
    [
        ([node("Mul", "scores half", "logits"), SOFTMAX], HALF),
        ([node("Div", "scores half", "logits"), SOFTMAX], 2.0),
        ([node("Identity", "scores", "logits"), SOFTMAX], 1.0),
        ([node("Mul", "half scores", "a"), node("Mul", "a half", "logits"), SOFTMAX], HALF**2),
        (
            [
                node("Mul", "scores half", "logits"),
                node("Exp", "logits", "powers"),
                node("ReduceSum", "powers last", "sums", keepdims=1),
                node("Div", "powers sums", "shares"),
                node("Mul", "shares half", "weights"),
            ],
            HALF,
        ),
    ],
)
def test_the_scale_is_the_product_of_all_factors(
    middle: Sequence[NodeProto], scale: float, tmp_path: Path
) -> None:
    """Whether they multiply or divide, and on which side the number stands; weights have none."""
    path = saved(token_graph(middle, tensors=ENDS), tmp_path / "graph.onnx")
    assert only(path).scale == scale


def test_operators_on_integers_are_read_as_what_they_compute(tmp_path: Path) -> None:
    """Half of the scores, as integers of a step of 1/16, and weights of a step of 1/256."""
    sixteenth, none = tensor("sixteenth", np.float32(1 / 16)), tensor("none", np.int8(0))
    fine, least = tensor("fine", np.float32(1 / 256)), tensor("least", np.int8(-128))
    middle = [
        node("QuantizeLinear", "scores sixteenth none", "scores8"),
        node(
            "QLinearMul",
            "scores8 sixteenth none none8 fine least sixteenth none",
            "logits8",
            domain="com.microsoft",
        ),
        node(
            "QLinearSoftmax",
            "logits8 sixteenth none fine least",
            "weights8",
            axis=-1,
            opset=13,
            domain="com.microsoft",
        ),
        node("DequantizeLinear", "weights8 fine least", "weights"),
    ]
    tensors = [sixteenth, none, fine, least, tensor("none8", np.int8(0))]
    made = token_graph(middle, tensors=tensors, domains=("com.microsoft",))
    site = only(saved(made, tmp_path / "graph.onnx"))
    assert site.scale == HALF
    assert [step.size for step in site.steps] == [1 / 16, 1 / 16, 1 / 256]


def test_a_cap_is_read_with_the_scale_before_it(tmp_path: Path) -> None:
    """A quarter of the dot products, halved, capped at one and doubled: capped at two."""
    middle = [
        node("Mul", "scores half", "scaled"),
        node("Mul", "scaled half", "small"),
        node("Tanh", "small", "bent"),
        node("Div", "bent half", "capped"),
        node("Add", "capped bias", "logits"),
        SOFTMAX,
    ]
    site = only(written(tmp_path / "graph.onnx", middle))
    assert (site.scale, site.cap) == (HALF, 2.0)


UNCUT: dict[str, tuple[Sequence[NodeProto], str]] = {
    "scores beside scores": (
        [
            node("Concat", "scores bias", "logits", axis=-1),
            node("Softmax", "logits", "wide", axis=-1),
            node("Slice", "wide zero end last", "weights"),
        ],
        "more beside its scores than one stored number a head",
    ),
    "sinks, and a number of keys that the call says": (
        [
            node("Reshape", "drains shape", "apart_drains"),
            node("Expand", "apart_drains broad", "sinks"),
            node("Concat", "scores sinks", "all", axis=-1),
            node("Softmax", "all", "shares", axis=-1),
            node("Shape", "ids", "sizes"),
            node("Gather", "sizes one", "length"),
            node("Slice", "shares zero length last", "weights"),
        ],
        "takes as many of its weights as the sizes of a call say",
    ),
    "a bound that the call says": (
        [
            node("Shape", "ids", "sizes"),
            node("Gather", "sizes first", "length"),
            node("Cast", "length", "bound", to=1),
            node("Clip", "scores bound", "logits"),
            SOFTMAX,
        ],
        "Clip node .* between its products reads bound from outside",
    ),
    "some keys alone": (
        [node("Slice", "scores zero end last", "logits"), SOFTMAX],
        "takes some of its scores",
    ),
    "product with a tensor": (
        [node("Mul", "scores bias", "logits"), SOFTMAX],
        "combines its scores or weights with the tensor bias",
    ),
    "two products": (
        [
            node("MatMul", "query key", "again"),
            node("Add", "scores again", "logits"),
            SOFTMAX,
        ],
        "2 products",
    ),
    "unknown operator": (
        [node("CumSum", "scores one", "logits"), SOFTMAX],
        "CumSum node .* between its products is none of attention",
    ),
    "number from outside": (
        [
            node("ReduceMax", "bias", "top", keepdims=0),
            node("Add", "scores top", "logits"),
            SOFTMAX,
        ],
        "number that is computed elsewhere",
    ),
}
ENDS = [
    *(tensor(name, np.array([at])) for name, at in (("zero", 0), ("end", 3), ("last", 3))),
    tensor("first", np.array(1)),
    tensor("drains", np.array([0.5, -1.0], np.float32)),
    tensor("shape", np.array([1, 2, 1, 1])),
    tensor("broad", np.array([2, 2, 3, 1])),
]


@pytest.mark.parametrize("name", UNCUT)
def test_what_cannot_be_cut_is_listed_with_the_reason(name: str, tmp_path: Path) -> None:
    """It is no site, and its softmax is named."""
    middle, reason = UNCUT[name]
    path = saved(token_graph(middle, tensors=ENDS), tmp_path / "graph.onnx")
    found = find_sites(path)
    assert not found.sites
    (entry,) = found.uncut
    assert "Softmax" in entry.nodes[0]
    assert re.search(reason, entry.reason)
