"""8-bit projections: quantised graphs answer within the bound, and mistakes are beyond it."""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

import conformance
from conformance.base.geometry import Geometry
from conformance.declare.promises import declare
from conformance.errors import DeclarationError
from conformance.graphs.process import GraphProcess, Setting
from conformance.oracle.oracle import Oracle
from conformance.problems.inputs import Inputs
from conformance.problems.recipes import RECIPES
from conformance.tolerance import contract_for, model
from conformance.tolerance.attention_bound import shares
from conformance.tolerance.layer import matrix_error, quantise

DECLARED: Final = declare("layer", precision="int8-dynamic")
WIDTH, HEADS = 24, 3
QUANTISERS: Final[dict[str, dict[str, Any]]] = {
    "int8": {},
    "int8 by channel": {"per_channel": True},
    "uint8": {"weight_type": QuantType.QUInt8},
    "7 bits": {"reduce_range": True},
}
MISTAKES: Final = ("unscaled", "keys for values", "heads not merged", "softmax over queries")


class Attention(nn.Module):
    """Multi-head attention, perhaps with one of the mistakes."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in "qkvo")

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``[B, Lq, E]``, ``[B, Lk, E]`` twice to ``[B, Lq, E]``."""
        size, mistake = WIDTH // HEADS, self.mistake
        q, k, v = (
            part.reshape(query.shape[0], -1, HEADS, size).transpose(1, 2)
            for part in (self.q(query), self.k(key), self.v(value))
        )
        k, v = (v, k) if mistake == "keys for values" else (k, v)
        scores = q @ k.transpose(-1, -2) * (1.0 if mistake == "unscaled" else size**-0.5)
        heads = scores.softmax(-2 if mistake == "softmax over queries" else -1) @ v
        heads = heads if mistake == "heads not merged" else heads.transpose(1, 2)
        merged: Tensor = self.o(heads.reshape(query.shape[0], -1, WIDTH))
        return merged


class Quantised:
    """Such a module as a quantised graph, with the weights that its integers stand for."""

    def __init__(self, folder: Path, mistake: str, quantiser: str, seed: int = 5) -> None:
        torch.manual_seed(seed)
        module = Attention(mistake).eval()
        plain, small = folder / "plain.onnx", folder / "small.onnx"
        axes = {"q": {0: "b", 1: "l"}, "k": {0: "b", 1: "m"}, "v": {0: "b", 1: "m"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the legacy exporter says that it is one
            torch.onnx.export(
                module,
                tuple(torch.randn(2, length, WIDTH) for length in (5, 7, 7)),
                str(plain),
                input_names=["q", "k", "v"],
                output_names=["y"],
                dynamic_axes={**axes, "y": {0: "b", 1: "l"}},
                opset_version=17,
                dynamo=False,
            )
        logging.disable(logging.WARNING)
        quantize_dynamic(plain, small, **QUANTISERS[quantiser])
        logging.disable(logging.NOTSET)
        self.original = {role: getattr(module, role).weight.detach() for role in "qkvo"}
        self.biases = {f"{role}_bias": getattr(module, role).bias.detach() for role in "qkvo"}
        meant = _meant(onnx.load(small))
        self.matrices = {role: _nearest(meant, matrix) for role, matrix in self.original.items()}
        self._process = GraphProcess(small)  # avoids products that a machine cuts off

    def answers(self, feeds: dict[str, Any]) -> list[Tensor]:
        """What onnxruntime answers at the lowest and the highest level."""
        return [
            torch.from_numpy(self._process.run(feeds, setting=Setting(level=level))["y"].copy())
            for level in ("disabled", "all")
        ]

    def weights(self, *, original: bool) -> conformance.ProjectionWeights:
        """Those of the module, or what the integers of the graph stand for."""
        matrices = self.original if original else self.matrices
        return conformance.ProjectionWeights(**matrices, **self.biases)

    def margins(self, recipe: str, factor: float, *, original: bool, seed: int) -> list[float]:
        """The largest error over its bound at the lowest and the highest level."""
        generator = torch.Generator().manual_seed(seed)
        made = RECIPES[recipe]
        query = (made.query((2, 5, WIDTH), generator) * factor).float()
        key = (made.key((2, 9, WIDTH), generator) * factor).float()
        value = (made.value((2, 9, WIDTH), generator) * factor).float()
        inputs = _inputs(query, key, value, self.weights(original=original))
        expected = Oracle(DECLARED, "float32").answer(inputs)
        feeds = {"q": query.numpy(), "k": key.numpy(), "v": value.numpy()}
        return [
            float(((answer - expected.output).abs() / expected.bound).max())
            for answer in self.answers(feeds)
        ]


def _nearest(meant: list[Tensor], matrix: Tensor) -> Tensor:
    return min(meant, key=lambda one: float((one - matrix).abs().max()))


def _meant(graph: onnx.ModelProto) -> list[Tensor]:
    """The float matrices ``(out, in)`` that the integers of the projections stand for."""
    held = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.graph.initializer}
    operands = []
    for node in graph.graph.node:
        if node.op_type == "MatMulInteger":
            name = node.input[1].removesuffix("_quantized")
            shifted = held[node.input[1]].astype(np.int32) - held[f"{name}_zero_point"]
            operands.append(
                torch.from_numpy((shifted * held[f"{name}_scale"]).T.astype(np.float32))
            )
    return operands


def _inputs(
    query: Tensor, key: Tensor, value: Tensor, weights: conformance.ProjectionWeights
) -> Inputs:
    sizes = Geometry(
        batch=query.shape[0],
        num_heads=HEADS,
        num_kv_heads=HEADS,
        query_length=query.shape[1],
        key_length=key.shape[1],
        head_size=WIDTH // HEADS,
        value_head_size=WIDTH // HEADS,
        **dict.fromkeys(("query_size", "key_size", "value_size", "output_size"), WIDTH),
    )
    return Inputs(
        geometry=sizes,
        mode="separate",
        batched=True,
        query=query,
        key=key,
        value=value,
        weights=weights,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes quantised graphs, each once."""

    @functools.cache
    def build(mistake: str, quantiser: str) -> Quantised:
        return Quantised(tmp_path_factory.mktemp("graphs"), mistake, quantiser)

    return build


@pytest.mark.parametrize("quantiser", QUANTISERS)
@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize(
    ("recipe", "factor"),
    [("normal", 1.0), ("normal", 0.01), ("normal", 8.0), ("tied-keys", 1.0), ("integers", 1.0)],
)
def test_quantised_graphs_are_within_the_bound(
    made: Any, quantiser: str, recipe: str, factor: float, *, original: bool
) -> None:
    """Large logits and small ones, at every level, whether the weights are the integers' or not."""
    graph = made("", quantiser)
    for seed in range(4):
        margins = graph.margins(recipe, factor, original=original, seed=seed)
        assert max(margins) <= 1.0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_still_seen(made: Any, mistake: str) -> None:
    """At inputs of unit scale each of them is beyond the bound, on every one of four problems."""
    graph = made(mistake, "int8")
    margins = [min(graph.margins("normal", 1.0, original=False, seed=seed)) for seed in range(4)]
    assert min(margins) > 1.0


def test_the_bound_of_float32_accuses_them(made: Any) -> None:
    """Without the promise the same correct graph is far outside: the promise does something."""
    graph = made("", "int8")
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randn(2, length, WIDTH, generator=generator) for length in (5, 9, 9)]
    inputs = _inputs(tokens[0], tokens[1], tokens[2], graph.weights(original=False))
    expected = Oracle(declare("layer"), "float32").answer(inputs)
    feeds = dict(zip("qkv", (token.numpy() for token in tokens), strict=True))
    answer = graph.answers(feeds)[0]
    assert float(((answer - expected.output).abs() / expected.bound).max()) > 100.0


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_quantised_as_the_operator_does(seed: int) -> None:
    """DynamicQuantizeLinear on onnxruntime gives the same numbers, but where rounding is unsure."""
    node = onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    names = {"x": 1, "y": 2, "s": 1, "z": 2}
    ports = {n: onnx.helper.make_tensor_value_info(n, kind, None) for n, kind in names.items()}
    graph = onnx.helper.make_graph([node], "g", [ports["x"]], [ports[n] for n in "ysz"])
    opset = [onnx.helper.make_opsetid("", 17)]
    proto = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    generator = torch.Generator().manual_seed(seed)
    tokens = 10.0 ** (seed - 3) * (torch.randn(3, 7, 11, generator=generator) + seed)
    whole, step, zero = session.run(None, {"x": tokens.numpy()})
    meant = torch.from_numpy((whole.astype(np.int64) - int(zero)) * np.float64(step))
    quantised = quantise(tokens.double(), model.ACTIVATION_STEPS)
    assert bool(((meant - quantised.tokens).abs() <= quantised.unsure).all())
    assert float((quantised.unsure > 0).double().mean()) < 0.02
    half = float(step) * model.QUANTISATION_ERROR
    assert bool(((meant - tokens.double()).abs() <= half).all())


def test_tokens_of_one_value_and_no_tokens() -> None:
    """Zeros stay zeros, a constant stays what it is, and nothing stays nothing."""
    for value in (0.0, 3.0, -2.0):
        tokens = torch.full((2, 3), value, dtype=torch.float64)
        assert torch.equal(quantise(tokens, 255).tokens.round(decimals=5), tokens)
    assert quantise(torch.zeros(0, 4), 255).tokens.shape == (0, 4)


@pytest.mark.parametrize("quantiser", QUANTISERS)
def test_integers_are_told_from_originals(made: Any, quantiser: str) -> None:
    """What integers stand for has no error of its own; the originals are within what is allowed."""
    graph = made("", quantiser)
    for role in "qkvo":
        meant, original = graph.matrices[role].double(), graph.original[role].double()
        assert matrix_error(meant) is None
        allowed = matrix_error(original)
        assert allowed is not None
        assert bool(((meant - original).abs() <= allowed).all())


def test_small_integers_are_originals() -> None:
    """They lie on many grids, and a quantiser would move them to another one."""
    matrix = torch.arange(-12.0, 12.0).reshape(4, 6).remainder(3.0)
    assert matrix_error(matrix.double()) is not None


def test_the_part_of_the_integers_is_told(made: Any) -> None:
    """They dominate the bound, and its parts and the contract in words say so."""
    inputs = _inputs(
        *(torch.randn(2, length, WIDTH) for length in (5, 9, 9)),
        made("", "int8").weights(original=False),
    )
    oracle = Oracle(DECLARED, "float32")
    contract = oracle.contract(0.5)
    parts = shares(lambda other: oracle.bound(inputs, other), contract, (0, 1, 2))
    assert next(iter(parts)) == "quantisation"
    assert DECLARED.as_json()["precision"] == "int8-dynamic"
    assert contract_for(declare("layer"), "float32", 0.5).activation_steps == 0


@pytest.mark.parametrize(
    ("kind", "promises", "message"),
    [
        ("core", {}, "a layer in float32"),
        ("layer", {"dtypes": ["float16"]}, "a layer in float32"),
        ("layer", {"precision": "int8-dynamc"}, "did you mean 'int8-dynamic'"),
    ],
)
def test_wrong_promises_are_refused(kind: str, promises: dict[str, Any], message: str) -> None:
    """Only layers have projections, only float32 is quantised, and the word must be known."""
    with pytest.raises(DeclarationError, match=message):
        declare(kind, **{"precision": "int8-dynamic", **promises})
