"""What is a whole model, and what is one attention that is judged as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from graph_exports import dynamic, export, of_layer, separate
from little_graphs import FLOAT, node, plus_one, saved
from onnx import NodeProto, TensorProto, helper
from torch import Tensor
from whole_models import PLAIN, WIDTH, token_graph

from candidates.exports import EXPORTS
from conformance.models.model_graph import read_graph
from conformance.models.recognition import is_model, model_sites
from conformance.models.sites import find_sites


@pytest.mark.parametrize("name", ["encoder", "decoder", "encoder-decoder"])
def test_what_embeds_tokens_is_a_model(name: str, export_of: Callable[..., Path]) -> None:
    """Its attentions come with it."""
    sites = model_sites(export_of(name))
    assert sites is not None
    assert sites.sites


def float_graph(path: Path, *more: NodeProto) -> Path:
    """One attention over features ``tokens``, with nodes after its ``answer``."""
    made = token_graph(PLAIN)
    graph = made.graph
    first = graph.node[0]
    assert first.op_type == "Gather"
    del graph.node[0], graph.input[0]
    port = graph.input.add()
    port.name = "tokens"
    port.type.tensor_type.elem_type = 1
    for axis in ("b", "s"):
        port.type.tensor_type.shape.dim.add().dim_param = axis
    port.type.tensor_type.shape.dim.add().dim_value = 8
    graph.node.extend(more)
    return saved(made, path)


RESIDUAL = node("Add", "answer tokens", "sum")
NORM = node("LayerNormalization", "sum ones", "normal", axis=-1)
BEND = node("Relu", "answer", "bent")


@pytest.mark.parametrize(
    ("more", "model"),
    [
        ([], False),
        ([RESIDUAL], False),
        ([BEND], False),
        ([RESIDUAL, BEND], True),
        ([RESIDUAL, NORM], True),
    ],
    ids=["alone", "residual", "bend", "residual and bend", "residual and norm"],
)
def test_a_layer_needs_two_of_residual_norm_and_bend(
    more: list[NodeProto], model: object, tmp_path: Path
) -> None:
    """One of them alone may be a mistake of an attention, whose clauses then fail."""
    assert is_model(read_graph(float_graph(tmp_path / "graph.onnx", *more))) is model


def test_an_attention_on_the_answer_of_another_is_a_model(tmp_path: Path) -> None:
    """Although its inputs are features."""
    again = [
        node("MatMul", "answer matrix_q", "wide"),
        node("Reshape", "wide apart", "cut"),
        node("Transpose", "cut", "second", perm=[0, 2, 1, 3]),
        node("Transpose", "cut", "third", perm=[0, 2, 3, 1]),
        node("MatMul", "second third", "more"),
        node("Softmax", "more", "most", axis=-1),
        node("MatMul", "most second", "last"),
    ]
    path = float_graph(tmp_path / "graph.onnx", *again)
    made = onnx.load(path)
    made.graph.output.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, None))
    saved(made, path)
    assert len(find_sites(path).sites) == 2
    assert is_model(read_graph(path))


def test_what_is_no_graph_is_no_model(tmp_path: Path) -> None:
    """Whoever opens it says what is wrong with it."""
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"\x00junk")
    assert model_sites(junk) is None
    assert model_sites(tmp_path / "missing.onnx") is None
    assert model_sites(saved(plus_one(), tmp_path / "sum.onnx")) is None


def plain(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
    return layer(query, key, value)[0]


def test_one_attention_is_no_model(tmp_path: Path) -> None:
    """A layer of three inputs, as it was judged before models were known."""
    axes = dynamic(q="b sq", k="b sk", v="b sk")
    path = export(tmp_path / "graph.onnx", of_layer(plain), separate(), dynamic=axes)
    assert not is_model(read_graph(path))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "name", [each.name for each in EXPORTS if each.name.endswith("_traced_18")]
)
def test_no_export_of_one_attention_is_a_model(name: str, tmp_path: Path) -> None:
    """Of all that are judged as one attention."""
    (chosen,) = [each for each in EXPORTS if each.name == name]
    assert model_sites(chosen.make(tmp_path)) is None


@pytest.mark.parametrize("use", ["embedded", "rotating"])
def test_embedded_tokens_beside_floats_make_a_model(use: str, tmp_path: Path) -> None:
    """A decoder that takes the memory of an encoder as floats; a table of rotations makes none."""
    embedded = use == "embedded"
    made = token_graph()
    made.graph.input.append(helper.make_tensor_value_info("memory", FLOAT, ["b", "s", WIDTH]))
    for each in made.graph.node:
        if each.output[0] == "wide_q" and not embedded:
            each.input[0] = "memory"
        if each.output[0] in ("wide_k", "wide_v"):
            each.input[0] = "memory"
    if not embedded:
        made.graph.node.insert(4, node("Mul", "wide_q tokens", "turned_q"))
        made.graph.node[5].input[0] = "turned_q"
    assert is_model(read_graph(saved(made, tmp_path / "graph.onnx"))) is embedded


def test_weights_alone_are_no_answer_of_an_attention(tmp_path: Path) -> None:
    """Of a graph that answers with what meets no values, its attention is listed as not judged."""
    path = float_graph(tmp_path / "weights.onnx")
    made = onnx.load(path)
    (softmax,) = [entry for entry in made.graph.node if entry.op_type == "Softmax"]
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info(softmax.output[0], 1, None))
    onnx.save(made, path)
    sites = model_sites(path)
    assert sites is not None
    assert sites.sites == ()
    assert [entry.reason for entry in sites.uncut] == [
        "its weights are an answer of the model and meet no values"
    ]
