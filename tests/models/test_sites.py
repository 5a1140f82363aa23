"""Every attention of a model, and why one cannot be cut out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from little_graphs import model, node, saved, tensor
from onnx import NodeProto, TensorProto, helper
from whole_models import HEADS, SIZE, token_graph, written

from conformance.graphs.protocol import GraphRefused
from conformance.models.sites import Site, find_sites

SOFTMAX = node("Softmax", "logits", "weights", axis=-1)
HALF = 0.5


def only(path: Path) -> Site:
    sites = find_sites(path)
    assert not sites.uncut
    (site,) = sites.sites
    return site


def masks(site: Site) -> list[tuple[str, str, str]]:
    return [(mask.role, mask.axes, mask.name) for mask in site.masks]


@pytest.mark.parametrize(
    ("name", "count", "kv_heads", "axes"),
    [
        ("encoder", 2, 4, ["B11K"]),
        ("encoder-written", 2, 4, ["B11K"]),
        ("decoder", 2, 2, ["B1QK"]),
        ("encoder-decoder", 6, 4, ["B11K", "B1QK"]),
    ],
)
def test_every_attention_of_a_traced_model_is_read(
    name: str, count: int, kv_heads: int, axes: list[str], export_of: Callable[..., Path]
) -> None:
    """With its heads, its size, the standard's scale, its mask and the module it comes from."""
    found = find_sites(export_of(name))
    assert not found.uncut
    assert [site.index for site in found.sites] == list(range(count))
    assert {(site.heads, site.kv_heads, site.head_size) for site in found.sites} == {
        (4, kv_heads, 4)
    }
    assert [site.scale for site in found.sites] == pytest.approx([HALF] * count, rel=1e-6)
    assert sorted({mask.axes for site in found.sites for mask in site.masks}) == axes
    assert len({site.scope for site in found.sites}) == count
    assert all("layers." in site.scope for site in found.sites)


@pytest.mark.nightly
@pytest.mark.parametrize("opset", ["20", "23"])
@pytest.mark.parametrize("name", ["encoder", "encoder-written", "decoder", "encoder-decoder"])
def test_both_exporters_give_the_same_attentions(
    name: str, opset: str, export_of: Callable[..., Path]
) -> None:
    """The newer exporter's graph, with an operator or without, says the same of each attention."""
    traced, newer = (find_sites(export_of(name, exporter)) for exporter in ("traced", opset))
    assert not newer.uncut

    def said(site: Site) -> tuple[object, ...]:
        return site.heads, site.kv_heads, site.head_size, round(site.scale or 0, 5), site.scope

    assert list(map(said, newer.sites)) == list(map(said, traced.sites))


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
    ],
)
def test_the_scale_is_the_product_of_all_factors(
    middle: Sequence[NodeProto], scale: float, tmp_path: Path
) -> None:
    """Whether they multiply or divide, and on which side the number stands."""
    assert only(written(tmp_path / "graph.onnx", middle)).scale == scale


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
    "sinks": (
        [
            node("Concat", "scores bias", "logits", axis=-1),
            node("Softmax", "logits", "wide", axis=-1),
            node("Slice", "wide zero end last", "weights"),
        ],
        "sinks",
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
        "CumSum node .* lies between its products",
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
    tensor(name, np.array([at], np.int64)) for name, at in (("zero", 0), ("end", 3), ("last", 3))
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


def test_an_attention_inside_a_branch_is_listed(tmp_path: Path) -> None:
    """What an ``If`` holds has no tensor outside that could be cut at."""
    branch = helper.make_graph(
        [node("Softmax", "scores", "chosen", axis=-1)],
        "branch",
        [],
        [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)],
    )
    middle = [
        node("Size", "ids", "count"),
        node("Greater", "count one", "many"),
        node("Squeeze", "many", "flag"),
        helper.make_node("If", ["flag"], ["weights"], then_branch=branch, else_branch=branch),
    ]
    found = find_sites(written(tmp_path / "graph.onnx", middle))
    assert not found.sites
    assert {entry.reason.split(" node")[0] for entry in found.uncut} == {
        "it lies inside a graph of the If"
    }


def test_the_softmax_of_a_classifier_is_no_attention(tmp_path: Path) -> None:
    """Nothing is multiplied by what it gives: it is not even listed."""
    more = [node("Softmax", "answer", "probabilities", axis=-1)]
    made = token_graph()
    made.graph.node.extend(more)
    found = find_sites(saved(made, tmp_path / "graph.onnx"))
    assert (len(found.sites), found.uncut) == (1, ())


@pytest.mark.parametrize("causal", [0, 1])
def test_an_attention_operator_is_a_site(causal: int, tmp_path: Path) -> None:
    """Its own scale, mask and causal rule are read off its attributes and inputs."""
    nodes = [
        node("MatMul", "ids wide", "tokens"),
        helper.make_node(
            "Attention",
            ["tokens", "tokens", "tokens", "allowed"],
            ["answer"],
            q_num_heads=HEADS,
            kv_num_heads=HEADS,
            is_causal=causal,
            scale=0.25,
        ),
    ]
    width = HEADS * SIZE
    made = model(
        nodes,
        inputs=(
            ("ids", TensorProto.FLOAT, ["b", "s", 3]),
            ("allowed", TensorProto.BOOL, ["b", 1, "s", "s"]),
        ),
        outputs=(("answer", TensorProto.FLOAT, ["b", "s", width]),),
        tensors=[tensor("wide", np.ones((3, width), np.float32))],
        opset=23,
    )
    site = only(saved(made, tmp_path / "graph.onnx"))
    assert (site.heads, site.kv_heads, site.head_size) == (HEADS, HEADS, SIZE)
    assert (site.scale, site.causal) == (0.25, bool(causal))
    assert masks(site) == [("keep", "B1QK", "allowed")]


def test_an_operator_of_onnxruntime_is_a_site(tmp_path: Path) -> None:
    """Without the biases, which belong to the projections; its padding mask is one of integers."""
    width = HEADS * SIZE
    made = model(
        [
            helper.make_node(
                "MultiHeadAttention",
                ["x", "x", "x", "biases", "padding"],
                ["answer"],
                num_heads=HEADS,
                domain="com.microsoft",
            )
        ],
        inputs=(
            ("x", TensorProto.FLOAT, ["b", "s", width]),
            ("padding", TensorProto.INT32, ["b", "s"]),
        ),
        outputs=(("answer", TensorProto.FLOAT, ["b", "s", width]),),
        tensors=[tensor("biases", np.ones(3 * width, np.float32))],
        domains=("com.microsoft",),
    )
    site = only(saved(made, tmp_path / "graph.onnx"))
    assert (site.heads, site.kv_heads, site.head_size, site.scale) == (HEADS, HEADS, SIZE, HALF)
    assert masks(site) == [("keep_int", "BK", "padding")]
    assert "biases" not in site.inside[-1].input


def test_weights_that_are_not_there_are_not_read(
    tmp_path: Path, export_of: Callable[..., Path]
) -> None:
    """External data may be missing: sites need numbers of the graph's own file alone."""
    traced = onnx.load(export_of("encoder"))
    path = tmp_path / "model.onnx"
    onnx.save(traced, path, save_as_external_data=True, location="weights", size_threshold=64)
    (tmp_path / "weights").unlink()
    scales = [site.scale for site in find_sites(path).sites]
    assert scales == pytest.approx([HALF, HALF], rel=1e-6)


def test_numbers_in_the_file_of_the_weights_are_read(
    tmp_path: Path, export_of: Callable[..., Path]
) -> None:
    """The newer exporter puts even a scale there."""
    traced = onnx.load(export_of("encoder-written"))
    path = tmp_path / "model.onnx"
    onnx.save(traced, path, save_as_external_data=True, location="weights", size_threshold=0)
    assert [site.scale for site in find_sites(path).sites] == [HALF, HALF]


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    """In words that name no library."""
    path = tmp_path / "junk.onnx"
    path.write_bytes(b"\x00junk")
    with pytest.raises(GraphRefused, match="no ONNX graph"):
        find_sites(path)
