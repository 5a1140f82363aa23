"""The bound of the whole layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerance_inputs import waves
from torch import Generator, Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import contract_for, core_bound, layer_bound, model

DECLARATION = declare("layer")


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """Float32 tokens and weights of a layer."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: golden.ProjectionWeights
    num_heads: int
    num_kv_heads: int

    def golden(self, **options: Any) -> golden.MultiHeadAttention:
        """The exact answer."""
        return golden.multi_head_attention(
            self.query,
            self.key,
            self.value,
            self.weights,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            **options,
        )

    def bound(
        self, layer: golden.MultiHeadAttention, dtype: str = "float32", **changes: float
    ) -> Tensor:
        """Its bound, with some parts of the contract changed."""
        contract = contract_for(DECLARATION, dtype, layer.core.scale)
        return layer_bound(layer, replace(contract, **changes))  # type: ignore[arg-type]  # numbers


def make(
    *,
    num_heads: int = 4,
    num_kv_heads: int = 4,
    biases: bool = True,
    lengths: tuple[int, int] = (5, 9),
    amplitude: float = 1.0,
    seed: int = 0,
) -> LayerInputs:
    """Independent normal tokens and weights; head sizes 4 and 3, widths 6, 7, 5 and 10."""
    generator = Generator().manual_seed(seed)

    def matrix(outputs: int, inputs: int) -> Tensor:
        return torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)

    def bias(size: int) -> Tensor | None:
        return torch.randn(size, generator=generator) / 2 if biases else None

    weights = golden.ProjectionWeights(
        q=matrix(num_heads * 4, 6) * amplitude,
        k=matrix(num_kv_heads * 4, 7),
        v=matrix(num_kv_heads * 3, 5),
        o=matrix(10, num_heads * 3),
        q_bias=bias(num_heads * 4),
        k_bias=bias(num_kv_heads * 4),
        v_bias=bias(num_kv_heads * 3),
        o_bias=bias(10),
    )
    queries, keys = lengths
    return LayerInputs(
        query=torch.randn(2, queries, 6, generator=generator),
        key=torch.randn(2, keys, 7, generator=generator),
        value=torch.randn(2, keys, 5, generator=generator),
        weights=weights,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


def split(tokens: Tensor, heads: int) -> Tensor:
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


def in_float32(inputs: LayerInputs, keep: Tensor | None = None, factor: float = 1.0) -> Tensor:
    """The layer in torch's float32, its scale times a factor."""
    weights, groups = inputs.weights, inputs.num_heads // inputs.num_kv_heads
    query = split(linear(inputs.query, weights.q, weights.q_bias), inputs.num_heads)
    key = split(linear(inputs.key, weights.k, weights.k_bias), inputs.num_kv_heads)
    value = split(linear(inputs.value, weights.v, weights.v_bias), inputs.num_kv_heads)
    heads = scaled_dot_product_attention(
        query,
        key.repeat_interleave(groups, dim=1),
        value.repeat_interleave(groups, dim=1),
        attn_mask=keep,
        scale=factor / math.sqrt(query.shape[-1]),
    )
    merged = heads.transpose(1, 2).flatten(2)
    return merged if weights.o is None else linear(merged, weights.o, weights.o_bias)


def margin(got: Tensor, inputs: LayerInputs, **options: Any) -> float:
    layer = inputs.golden(**options)
    return float(((got.double() - layer.output).abs() / inputs.bound(layer)).max())


@pytest.mark.parametrize("lengths", [(1, 1), (5, 9), (40, 33), (3, 257)])
@pytest.mark.parametrize("amplitude", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_a_float32_layer_is_within_the_bound(
    num_kv_heads: int, amplitude: float, lengths: tuple[int, int], *, biases: bool
) -> None:
    """Torch's float32 layer never leaves the bound, with or without masks, biases and groups."""
    for seed in range(3):
        inputs = make(
            num_kv_heads=num_kv_heads,
            biases=biases,
            lengths=lengths,
            amplitude=amplitude,
            seed=seed,
        )
        keep = torch.rand(2, 1, *lengths, generator=Generator().manual_seed(seed)) < 0.6
        keep[..., 0] = True
        assert margin(in_float32(inputs), inputs) <= 1.0
        assert margin(in_float32(inputs, keep), inputs, keep=keep) <= 1.0


def test_a_scale_off_by_one_percent_exceeds_the_bound() -> None:
    """On ordinary float32 values a layer with a scale of 1.01 times the right one is caught."""
    for seed in range(10):
        inputs = make(seed=seed)
        assert margin(in_float32(inputs, factor=1.01), inputs) > 10.0


# From the prototype that the formulas were first validated with, an independent program.
FROZEN = [
    ("float32", (3.11181e-05, 3.08465e-05, 3.08025e-05)),
    ("bfloat16", (0.134199, 0.141164, 0.129957)),
]


@pytest.mark.parametrize(("dtype", "values"), FROZEN)
def test_the_bound_is_that_of_the_prototype(
    dtype: str, values: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a layer written down without random numbers two programs agree within one percent."""
    # The prototype knew of no partial sums that are stored.
    monkeypatch.setattr(model, "PARTIAL_STORES", 0)

    paces = {"q": 0.31, "k": 0.47, "v": 0.59, "o": 0.83}
    matrices = {name: waves(8, 8, pace=pace) for name, pace in paces.items()}
    biases = {f"{name}_bias": waves(8, pace=pace + 0.05) for name, pace in paces.items()}
    context = waves(1, 5, 8, pace=1.3)
    inputs = LayerInputs(
        query=waves(1, 3, 8, pace=1.1),
        key=context,
        value=context,
        weights=golden.ProjectionWeights(**matrices, **biases),
        num_heads=2,
        num_kv_heads=2,
    )
    # The prototype knew of no shares of partial results.
    bound = inputs.bound(inputs.golden(), dtype, merge_roundings=0.0)
    samples = [float(bound[0, 0, 0]), float(bound[0, 2, 7]), float(bound.mean())]
    assert samples == pytest.approx(values, rel=0.01)


def test_exact_projections_leave_the_bound_of_the_core() -> None:
    """Signed permutations expose the core: the layer's bound is the core's, moved and signed."""
    generator = Generator().manual_seed(4)

    def permutation() -> Tensor:
        signs = torch.randn(8, 1, generator=generator).sign()
        return signs * torch.eye(8)[torch.randperm(8, generator=generator)]

    tokens = torch.randn(2, 7, 8, generator=generator)
    weights = golden.ProjectionWeights(
        q=permutation(), k=permutation(), v=permutation(), o=permutation()
    )
    inputs = LayerInputs(
        query=tokens, key=tokens, value=tokens, weights=weights, num_heads=2, num_kv_heads=2
    )
    layer = inputs.golden()
    core = core_bound(layer.core, contract_for(DECLARATION, "float32", layer.core.scale))
    assert weights.o is not None
    expected = linear(golden.merge_heads(core), weights.o.double().abs())
    assert float((inputs.bound(layer) / expected - 1.0).abs().max()) < 1e-9


POINTS: list[dict[str, Any]] = [
    {"query_bias": False, "key_bias": False, "value_bias": False, "output_bias": False},
    {"head_split": "interleaved", "head_merge": "interleaved"},
    {"head_split": "reinterpret", "head_merge": "reinterpret"},
    {"head_merge": "tokens"},
    {"group_order": "tile"},
    {"scale": "none"},
    {"softmax_axis": "query"},
]


def at_point(inputs: LayerInputs, semantics: golden.Semantics) -> Tensor:
    """The layer in float32 with the head layout, biases, scale and softmax axis of a point."""
    weights, heads = inputs.weights, inputs.num_heads

    def projected(name: str, role: str, count: int) -> Tensor:
        bias = getattr(weights, f"{name}_bias") if getattr(semantics, f"{role}_bias") else None
        tokens = linear(getattr(inputs, role), getattr(weights, name), bias)
        split_tokens = golden.split_heads(tokens, count, semantics)
        return golden.repeat_heads(split_tokens, heads, semantics)

    query = projected("q", "query", heads)
    key = projected("k", "key", inputs.num_kv_heads)
    value = projected("v", "value", inputs.num_kv_heads)
    scale = golden.scale_value(semantics, head_size=4, value_head_size=3, num_heads=heads)
    logits = (query @ key.transpose(-1, -2)) * scale
    output = torch.softmax(logits, dim=2 if semantics.softmax_axis == "query" else 3) @ value
    merged = golden.merge_heads(output, semantics)
    assert weights.o is not None
    bias = weights.o_bias if semantics.output_bias else None
    return linear(merged, weights.o[:, : merged.shape[-1]], bias)


@pytest.mark.parametrize("changes", POINTS)
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_float32_at_other_points_is_within_the_bound(
    num_kv_heads: int, changes: dict[str, Any]
) -> None:
    """Head layouts, groups, left-out biases, scale rules and softmax axes reach the bound."""
    semantics = golden.STANDARD.replace(**changes)
    for seed in range(10):
        inputs = make(num_kv_heads=num_kv_heads, lengths=(6, 6), seed=seed)
        assert margin(at_point(inputs, semantics), inputs, semantics=semantics) <= 1.0


def test_biases_that_the_point_leaves_out_add_no_error() -> None:
    """A bias under query_bias=False and the like is as if it were not given."""
    without = {f"{name}_bias": False for name in ("query", "key", "value", "output")}
    given_biases, none = make(biases=True), make(biases=False)
    weights = golden.ProjectionWeights(
        q=given_biases.weights.q,
        k=given_biases.weights.k,
        v=given_biases.weights.v,
        o=given_biases.weights.o,
    )
    none = LayerInputs(
        query=given_biases.query,
        key=given_biases.key,
        value=given_biases.value,
        weights=weights,
        num_heads=4,
        num_kv_heads=4,
    )
    layer = given_biases.golden(semantics=golden.STANDARD.replace(**without))
    assert torch.equal(given_biases.bound(layer), none.bound(none.golden()))


def test_without_an_output_projection_the_heads_are_judged() -> None:
    """With weights.o None the bound is that of the merged heads, and float32 is within it."""
    inputs = make()
    weights = golden.ProjectionWeights(q=inputs.weights.q, k=inputs.weights.k, v=inputs.weights.v)
    inputs = LayerInputs(
        query=inputs.query,
        key=inputs.key,
        value=inputs.value,
        weights=weights,
        num_heads=4,
        num_kv_heads=4,
    )
    assert margin(in_float32(inputs), inputs) <= 1.0


@given(
    batch=st.integers(0, 2),
    lengths=st.tuples(st.integers(0, 4), st.integers(0, 9)),
    kept=st.sampled_from([0.0, 0.3, 1.0]),
    rule=st.sampled_from(["zeros", "nan", "mean-of-all", "mean-of-valid"]),
    junk=st.sampled_from([None, 1e30, math.nan, math.inf]),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_bound_is_a_finite_number_everywhere(
    batch: int,
    lengths: tuple[int, int],
    kept: float,
    rule: str,
    junk: float | None,
    *,
    dtype: str,
    causal: bool,
    seed: int,
) -> None:
    """Empty inputs, empty rows and junk in keys that nobody attends give no NaN or infinity."""
    inputs = make(lengths=lengths, num_kv_heads=2, seed=seed)
    keep = torch.rand(2, 1, *lengths, generator=Generator().manual_seed(seed)) < kept
    keep[..., -1:] = False
    key, value = inputs.key.clone(), inputs.value.clone()
    if junk is not None and not rule.startswith("mean"):
        key[:, -1:], value[:, -1:] = junk, junk
    inputs = LayerInputs(
        query=inputs.query[:batch],
        key=key[:batch],
        value=value[:batch],
        weights=inputs.weights,
        num_heads=4,
        num_kv_heads=2,
    )
    semantics = golden.STANDARD.replace(empty_rows=rule)
    layer = inputs.golden(keep=keep[:batch], causal=causal, semantics=semantics)
    bound = inputs.bound(layer, dtype)
    assert bound.shape == layer.output.shape
    assert bool(torch.isfinite(bound).all())
    assert bool((bound >= 0).all())
