"""An attention as a graph of its own computes what it computes inside its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from little_graphs import node, saved, tensor
from onnx import NodeProto, numpy_helper
from whole_models import HEADS, WORDS, token_graph, written

from conformance._golden import golden
from conformance.adapters.graph import GraphRequest, graph_candidate
from conformance.base.profile import PROFILES
from conformance.graphs.process import Array
from conformance.graphs.sidecar import GraphDeclaration
from conformance.models.cutting import Cut, cut
from conformance.models.site import Site
from conformance.models.sites import Sites, find_sites
from conformance.running.runner import CandidateRun

FEEDS = {
    "ids": np.arange(6).reshape(2, 3) % WORDS,
    "allowed": np.ones((2, 1, 3, 3), bool),
    "bias": np.zeros((2, HEADS, 3, 3), np.float32),
}
SIZES = {"batch": 3, "tokens": 7, "queries": 4}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Nothing optimised: the same kernels run in the model and in what was cut out."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def inside(path: Path, feeds: dict[str, Array], names: list[str]) -> dict[str, Array]:
    """Tensors of a model while it runs."""
    model = onnx.load(path)
    present = {port.name for port in model.graph.output}
    for name in dict.fromkeys(names):
        if name not in present:
            model.graph.output.add().name = name
    return dict(zip(names, session(model).run(names, feeds), strict=True))


def arranged(array: Array, letters: str, goal: str, heads: int) -> Array:
    """An array with axes ``letters`` in the order of a goal; a width is cut into heads."""
    if "M" in letters and "M" not in goal:
        at = letters.index("M")
        array = array.reshape(*array.shape[:at], heads, -1, *array.shape[at + 1 :])
        letters = letters.replace("M", "HD")
    return array.transpose([letters.index(letter) for letter in goal])


def answers(sites: Sites, site: Site, made: Cut, feeds: dict[str, Array]) -> tuple[Array, Array]:
    """The answer of an attention inside its model, and of what was cut out on the same tensors."""
    edges = {part: edge.name for part, edge in site.edges.items()}
    masks = {f"mask_{at + 1}" if at else "mask": mask.name for at, mask in enumerate(site.masks)}
    held = inside(sites.graph.path, feeds, [*edges.values(), *masks.values(), site.output])
    axes = made.output_axes
    own = {
        part: arranged(held[edge.name], edge.letters, axes, site.heads or 1)
        for part, edge in site.edges.items()
    }
    own |= {
        name: held[tensor] * mask.factor if mask.role == "bias" else held[tensor]
        for mask, (name, tensor) in zip(site.masks, masks.items(), strict=True)
    }
    if site.sinks is not None:
        own["sinks"] = numpy_helper.to_array(sites.graph.wiring.initializers[site.sinks.stored])
    (answer,) = session(made.model).run(["output"], own)
    letters = site.output_letters
    return arranged(held[site.output], letters, axes, site.heads or 1), answer


def ids(name: str) -> dict[str, Array]:
    """Inputs of a model of ``candidates.models`` at sizes that it was not traced with."""
    generator = np.random.default_rng(0)
    batch, length = SIZES["batch"], SIZES["tokens"]
    mask = np.ones((batch, length), np.int64)
    mask[1, 5:] = 0
    feeds = {"input_ids": generator.integers(1, 30, (batch, length)), "attention_mask": mask}
    if name == "encoder-decoder":
        feeds["decoder_ids"] = generator.integers(1, 30, (batch, SIZES["queries"]))
    return feeds


@pytest.mark.parametrize("name", ["encoder", "encoder-written", "decoder", "encoder-decoder"])
def test_what_was_cut_out_answers_as_it_does_in_its_model(
    name: str, export_of: Callable[..., Path]
) -> None:
    """On the tensors that reach it while the model runs, bit by bit."""
    sites = find_sites(export_of(name))
    for site in sites.sites:
        made = cut(sites.graph, site)
        onnx.checker.check_model(made.model, full_check=True)
        expected, answer = answers(sites, site, made, ids(name))
        assert np.array_equal(expected, answer)


LAST = node("Softmax", "logits", "weights", axis=-1)
FEW = [
    tensor("drains", np.array([0.5, -1.0], np.float32)),
    tensor("shape", np.array([1, HEADS, 1, 1])),
    tensor("wide", np.array([2, HEADS, 3, 1])),
    tensor("begin", np.array([0])),
    tensor("end", np.array([-1])),
    tensor("axis", np.array([3])),
    tensor("folded", np.array([2 * HEADS, 3, 3])),
    tensor("unfolded", np.array([2, HEADS, 3, 3])),
    tensor("square", np.array([1, 1, 3, 3])),
    tensor("yes", np.ones((), bool)),
    tensor("lowest", np.array(-1e30, np.float32)),
    tensor("order", np.tile(np.arange(2, -1, -1), (2, HEADS, 3, 1))),
]
MIDDLES: dict[str, list[NodeProto]] = {
    "sinks": [
        node("Reshape", "drains shape", "apart_drains"),
        node("Expand", "apart_drains wide", "sinks"),
        node("Add", "scores bias", "sum"),
        node("Concat", "sum sinks", "all", axis=-1),
        node("Softmax", "all", "shares", axis=-1),
        node("Slice", "shares begin end axis", "weights"),
    ],
    "folded": [
        node("Reshape", "scores folded", "flat"),
        node("Softmax", "flat", "shares", axis=-1),
        node("Reshape", "shares unfolded", "weights"),
    ],
    "a number for all": [
        node("Expand", "half square", "same"),
        node("Add", "same bias", "sum"),
        node("Add", "scores sum", "logits"),
        LAST,
    ],
    "a mask of numbers": [
        node("Expand", "yes square", "every"),
        node("And", "every allowed", "seen"),
        node("Cast", "seen", "shown", to=1),
        node("Mul", "shown scores", "left"),
        node("Not", "seen", "unseen"),
        node("Cast", "unseen", "hidden", to=1),
        node("Mul", "lowest hidden", "fill"),
        node("Add", "left fill", "logits"),
        LAST,
    ],
    "an axis of one": [
        node("Unsqueeze", "scores axis", "wider"),
        node("Squeeze", "wider axis", "narrower"),
        node("Reshape", "narrower folded", "flat"),
        node("Softmax", "flat", "shares", axis=-1),
        node("Reshape", "shares unfolded", "weights"),
    ],
    "a bias that is subtracted": [node("Sub", "scores bias", "logits"), LAST],
    "a bias before the scale": [
        node("Add", "scores bias", "sum"),
        node("Mul", "sum half", "logits"),
        LAST,
    ],
    "scores of distances": [
        node("MatMul", "query key", "again"),
        node("GatherElements", "again order", "gathered", axis=3),
        node("Add", "scores gathered", "logits"),
        LAST,
    ],
}


@pytest.mark.parametrize("name", MIDDLES)
def test_whatever_stands_between_the_products_is_cut_out(name: str, tmp_path: Path) -> None:
    """One more score a head, other axes, numbers, and what is gathered from another product."""
    made = token_graph(MIDDLES[name], tensors=FEW)
    sites = find_sites(saved(made, tmp_path / "graph.onnx"))
    (site,) = sites.sites
    assert not sites.uncut
    feeds = FEEDS | {"bias": np.random.default_rng(2).random((2, HEADS, 3, 3), np.float32)}
    expected, answer = answers(sites, site, cut(sites.graph, site), feeds)
    np.testing.assert_allclose(expected, answer, atol=1e-6)


def test_equal_attentions_have_one_digest(export_of: Callable[..., Path]) -> None:
    """Layers of one kind are the same but for weights and names; padding and causal masks differ.

    The cross-attentions take a mask of keys alone, like the encoder's.
    """
    sites = find_sites(export_of("encoder-decoder"))
    digests = [cut(sites.graph, site).digest for site in sites.sites]
    assert [digests.index(digest) for digest in digests] == [0, 0, 2, 0, 2, 0]


def test_another_number_is_another_attention(tmp_path: Path) -> None:
    """A scale of another layer is a difference."""
    digests = set()
    for factor in ("half", "nothing"):
        middle = [
            node("Mul", f"scores {factor}", "scaled"),
            node("Softmax", "scaled", "weights", axis=-1),
        ]
        sites = find_sites(written(tmp_path / f"{factor}.onnx", middle))
        digests.add(cut(sites.graph, sites.sites[0]).digest)
    assert len(digests) == 2


def test_a_cut_holds_no_weights(tmp_path: Path) -> None:
    """The only tensors in it are numbers, and it takes any sizes but that of a head."""
    sites = find_sites(written(tmp_path / "graph.onnx"))
    made = cut(sites.graph, sites.sites[0])
    assert all(np.prod(tensor.dims) <= 1 for tensor in made.model.graph.initializer)
    run = session(made.model).run
    for batch, heads, queries, keys in ((1, 1, 1, 1), (2, 5, 3, 4)):
        sizes = {"query": (queries, 4), "key": (keys, 4), "value": (keys, 6)}
        feeds = {part: np.ones((batch, heads, *size), np.float32) for part, size in sizes.items()}
        assert run(["output"], feeds)[0].shape == (batch, heads, queries, 6)


def test_a_factor_of_the_values_is_not_cut_out_with_them(tmp_path: Path) -> None:
    """It is no scale: attention begins behind it."""
    made = token_graph()
    made.graph.node.insert(8, node("Mul", "value half", "more"))
    for each in made.graph.node:
        if each.output[0] == "mixed":
            each.input[1] = "more"
    path = tmp_path / "graph.onnx"
    onnx.save(made, path)
    (site,) = find_sites(path).sites
    assert (site.value.name, site.value.factors) == ("more", ())


def test_products_may_be_written_as_equations(tmp_path: Path) -> None:
    """Heads between positions and features, which no product of matrices could read."""
    made = token_graph()
    equations = {"scores": "bqhd,bkhd->bhqk", "mixed": "bhqk,bkhd->bqhd"}
    operands = {"scores": ["cut_q", "cut_k"], "mixed": ["weights", "cut_v"]}
    for each in made.graph.node:
        if each.output[0] in equations:
            name = each.output[0]
            each.CopyFrom(
                onnx.helper.make_node("Einsum", operands[name], [name], equation=equations[name])
            )
        elif each.output[0] == "turned":
            each.CopyFrom(node("Identity", "mixed", "turned"))
    path = tmp_path / "graph.onnx"
    onnx.save(made, path)
    sites = find_sites(path)
    (site,) = sites.sites
    assert {edge.letters for edge in site.edges.values()} == {site.output_letters} == {"BLHD"}
    assert (site.heads, site.head_size) == (HEADS, 4)
    expected, answer = answers(sites, site, cut(sites.graph, site), FEEDS)
    assert np.array_equal(expected, answer)


def test_a_tensor_that_is_key_and_value_at_once_is_two_inputs(tmp_path: Path) -> None:
    """Each product reads its own."""
    made = token_graph()
    for each in made.graph.node:
        for at, name in enumerate(each.input):
            if name in ("cut_k", "cut_v"):
                each.input[at] = "cut_q"
    path = tmp_path / "graph.onnx"
    onnx.save(made, path)
    sites = find_sites(path)
    (site,) = sites.sites
    assert site.key.name == site.value.name == site.query.name
    expected, answer = answers(sites, site, cut(sites.graph, site), FEEDS)
    assert np.array_equal(expected, answer)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_sinks_are_judged(factor: float, tmp_path: Path) -> None:
    """A graph whose sinks enter as they are conforms, one that multiplies them does not."""
    made = token_graph(MIDDLES["sinks"], tensors=FEW)
    sites = find_sites(saved(made, tmp_path / "graph.onnx"))
    own = cut(sites.graph, sites.sites[0])
    for each in own.model.graph.node:
        if each.input[0] == "sinks":
            each.input[0] = "changed"
    own.model.graph.node.insert(0, node("Mul", "sinks factor", "changed"))
    own.model.graph.initializer.append(tensor("factor", np.array(factor, np.float32)))
    declared = GraphDeclaration(
        inputs=own.inputs,
        outputs={"output": {"role": "output", "axes": own.output_axes}},
        promises={"semantics": golden.STANDARD.replace(scale="none")},
    )
    path = saved(own.model, tmp_path / "core.onnx")
    candidate = graph_candidate(path, GraphRequest(declared=declared))
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=("sinks.golden",), explain=False)
    (result,) = [run.run(planned) for planned in run.planned()]
    assert result.status == ("passed" if factor == 1 else "failed")
