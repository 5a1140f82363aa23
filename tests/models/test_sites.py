"""Every attention of a model, and why one cannot be cut out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from little_graphs import node, saved
from onnx import ModelProto, NodeProto, TensorProto, helper
from whole_models import HEADS, token_graph

from conformance.graphs.protocol import GraphRefused
from conformance.models.cutting import cut
from conformance.models.mask_facts import mask_facts
from conformance.models.recognition import is_model
from conformance.models.sites import find_sites

HALF = 0.5


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


def chosen(inner: list[NodeProto], result: str, first: int, last: int) -> ModelProto:
    """A token graph in which an ``If`` on the number of ids holds some nodes in either branch.

    They stand in the place of its own nodes from ``first`` to ``last``.
    """
    made = token_graph()
    branch = helper.make_graph(
        inner, "branch", [], [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)]
    )
    nodes = list(made.graph.node)
    nodes[first:last] = [
        node("Size", "ids", "count"),
        node("Greater", "count one", "many"),
        node("Squeeze", "many", "flag"),
        helper.make_node("If", ["flag"], [result], then_branch=branch, else_branch=branch),
    ]
    made.graph.ClearField("node")
    made.graph.node.extend(nodes)
    return made


def test_a_softmax_alone_in_a_branch_is_listed(tmp_path: Path) -> None:
    """The products outside of it have tensors that it has not."""
    made = chosen([node("Softmax", "scores", "chosen", axis=-1)], "weights", 11, 13)
    found = find_sites(saved(made, tmp_path / "graph.onnx"))
    assert not found.sites
    assert {entry.reason for entry in found.uncut} == {
        "it lies inside a graph of a node, its products do not"
    }


def test_an_attention_inside_a_branch_is_cut_out(tmp_path: Path) -> None:
    """In each of both branches, from the heads that come from outside to its answer."""
    inner = [
        node("MatMul", "query key", "scores"),
        node("Mul", "scores half", "scaled"),
        node("Where", "allowed scaled low", "seen"),
        node("Softmax", "seen", "weights", axis=-1),
        node("MatMul", "weights value", "chosen"),
    ]
    made = chosen(inner, "mixed", 10, 14)
    found = find_sites(saved(made, tmp_path / "graph.onnx"))
    assert not found.uncut
    assert is_model(found.graph)
    first, second = found.sites
    assert cut(found.graph, first).digest == cut(found.graph, second).digest
    assert (first.heads, first.scale) == (HEADS, 0.5)
    facts = mask_facts(found)
    assert facts[1].inputs == ("allowed",)
    heads = np.random.default_rng(0).standard_normal((3, 2, HEADS, 3, 4)).astype(np.float32)
    feeds = dict(zip(("query", "key", "value"), heads, strict=True))
    keep = np.tri(3, dtype=bool)[None, None].repeat(2, 0)
    session = onnxruntime.InferenceSession(cut(found.graph, first).model.SerializeToString())
    (answer,) = session.run(["output"], {**feeds, "mask": keep})
    scores = np.where(keep, heads[0] @ heads[1].swapaxes(-1, -2) / 2, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(answer, weights @ heads[2], atol=1e-5)


def test_the_softmax_of_a_classifier_is_no_attention(tmp_path: Path) -> None:
    """Nothing is multiplied by what it gives: it is not even listed."""
    more = [node("Softmax", "answer", "probabilities", axis=-1)]
    made = token_graph()
    made.graph.node.extend(more)
    found = find_sites(saved(made, tmp_path / "graph.onnx"))
    assert (len(found.sites), found.uncut) == (1, ())


def test_the_softmax_of_a_router_is_no_attention(tmp_path: Path) -> None:
    """The experts that it weighs are summed, before their sum meets the next matrix."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [-1])
    made = token_graph(tensors=[axes])
    made.graph.node.extend(
        [
            node("MatMul", "answer matrix_q", "routes"),
            node("Softmax", "routes", "chosen", axis=-1),
            node("Mul", "answer chosen", "weighed"),
            node("ReduceSum", "weighed axes", "summed", keepdims=1),
            node("Add", "answer summed", "mixture"),
            node("MatMul", "mixture matrix_k", "last"),
        ]
    )
    found = find_sites(saved(made, tmp_path / "graph.onnx"))
    assert (len(found.sites), found.uncut) == (1, ())


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


def test_weights_that_are_an_answer_and_dead_attentions_are_listed(tmp_path: Path) -> None:
    """With the reason why neither is judged."""
    for answer, reason in (("weights", "its weights are an answer"), ("tokens", "it reaches no")):
        made = token_graph()
        made.graph.output[0].name = answer
        made.graph.output[0].type.tensor_type.ClearField("shape")
        found = find_sites(saved(made, tmp_path / "graph.onnx"))
        assert not found.sites
        (entry,) = found.uncut
        assert reason in entry.reason
    without = token_graph()
    for each in [each for each in without.graph.node if "mixed" in (*each.input, *each.output)]:
        without.graph.node.remove(each)
    without.graph.node[-1].input[0] = "value"
    without.graph.output.append(helper.make_tensor_value_info("weights", 1, None))
    (entry,) = find_sites(saved(without, tmp_path / "graph.onnx")).uncut
    assert "its weights are an answer" in entry.reason


def test_depth_has_no_limit(tmp_path: Path) -> None:
    """An attention behind more nodes than calls may lie in one another."""
    made = token_graph()
    first = made.graph.node[0]
    first.output[0] = "deep0"
    chain = [node("Neg", f"deep{at}", f"deep{at + 1}") for at in range(1200)]
    chain.append(node("Add", "deep1200 nothing", "tokens"))
    nodes = [first, *chain, *made.graph.node[1:]]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    found = find_sites(saved(made, tmp_path / "graph.onnx"))
    assert [site.scale for site in found.sites] == [HALF]


@pytest.mark.parametrize("goal", ["query", "queried"])
def test_a_scale_above_a_reshape_to_the_same_shape_counts(goal: str, tmp_path: Path) -> None:
    """The shape is that of the heads before they are multiplied, or after."""
    made = token_graph([node("Softmax", "scores", "weights", axis=-1)])
    product = next(each for each in made.graph.node if "scores" in each.output)
    at = list(made.graph.node).index(product)
    product.input[0] = "shaped"
    nodes = [
        node("Mul", "query half", "queried"),
        node("Shape", goal, "query_shape"),
        node("Reshape", "queried query_shape", "shaped"),
    ]
    for each in reversed(nodes):
        made.graph.node.insert(at, each)
    (site,) = find_sites(saved(made, tmp_path / "graph.onnx")).sites
    assert site.scale == HALF
