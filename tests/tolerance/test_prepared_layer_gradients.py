"""Gradients of layers whose projected heads are turned, normalised or beside distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradient_problems import contract, output_gradient
from prepared_heads import (
    POINTS,
    PRECISIONS,
    described,
    normalised,
    prepared,
    turned,
    with_distances,
)
from torch import Tensor

from conformance._golden import golden
from conformance.tolerance import layer_gradients
from conformance.tolerance.gradient import Gradient

INPUTS = ("query", "key", "value")
SEEDS = (1, 2, 3, 4, 5)
# Four heads of size 4 share two of keys and values; value heads of size 2.
SHAPES = {
    "query": (2, 5, 6),
    "key": (2, 7, 6),
    "value": (2, 7, 6),
    "q": (16, 6),
    "k": (8, 6),
    "v": (4, 6),
    "o": (3, 8),
    "q_bias": (16,),
    "k_bias": (8,),
    "v_bias": (4,),
    "o_bias": (3,),
}
UPSTREAM = torch.Size((2, 5, 3))
Prepare = Callable[[Tensor, int, golden.Semantics], Tensor]


def leaves(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Inputs, matrices and biases."""
    return {
        name: output_gradient(torch.Size(shape), 100 * seed + turn).to(dtype).requires_grad_()
        for turn, (name, shape) in enumerate(SHAPES.items())
    }


def evaluate(operands: dict[str, Tensor], point: golden.Semantics) -> golden.MultiHeadAttention:
    """The golden layer."""
    return golden.multi_head_attention(
        *[operands[name] for name in INPUTS],
        weights_of(operands),
        num_heads=4,
        num_kv_heads=2,
        semantics=point,
    )


def weights_of(operands: dict[str, Tensor]) -> golden.ProjectionWeights:
    """All but the inputs."""
    return golden.ProjectionWeights(**{n: t for n, t in operands.items() if n not in INPUTS})


def judged(
    given: dict[str, Tensor],
    upstream: Tensor,
    dtype: str,
    point: golden.Semantics,
    *,
    eager: bool = False,
) -> dict[str, Gradient]:
    """The golden gradients by name."""
    exact = {name: tensor.detach().double() for name, tensor in given.items()}
    with torch.no_grad():
        return layer_gradients(
            evaluate(exact, point), upstream.double(), contract(dtype, eager=eager)
        )


def margin(bounded: dict[str, Gradient], actual: dict[str, Tensor]) -> float:
    """The largest error over its bound."""
    return max(
        float(((bounded[name].value - theirs.double()).abs() / bounded[name].worst).max())
        for name, theirs in actual.items()
    )


def pulled(output: Tensor, operands: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """Torch's gradients by name."""
    gradients = torch.autograd.grad(output, list(operands.values()), upstream)
    return dict(zip(operands, gradients, strict=True))


def written_out(
    operands: dict[str, Tensor],
    point: golden.Semantics,
    prepare: Prepare = prepared,
    *,
    late: bool = False,
) -> Tensor:
    """The layer in the dtype of its tensors; ``late`` repeats keys after they are prepared."""
    query, key, value = (
        torch.nn.functional.linear(operands[name], operands[name[0]], operands[f"{name[0]}_bias"])
        .unflatten(-1, (count, -1))
        .transpose(1, 2)
        for name, count in (("query", 4), ("key", 2), ("value", 2))
    )
    if late:
        query, key = prepare(query, 2, point), prepare(key, 0, point).repeat_interleave(2, 1)
    else:
        query, key = prepare(query, 2, point), prepare(key.repeat_interleave(2, 1), 0, point)
    weights = with_distances(query @ key.mT * 0.5, point).softmax(-1)
    merged = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2).flatten(2)
    return torch.nn.functional.linear(merged, operands["o"], operands["o_bias"])


@pytest.mark.parametrize("changes", [{"head_split": "interleaved"}, {"group_order": "tile"}])
def test_heads_that_are_cut_otherwise_are_turned_back_as_they_are(changes: dict[str, Any]) -> None:
    """The gradients return to the channels and the heads that they come from."""
    point = golden.STANDARD.replace(qk_norm="layer", rotary="halves", **changes)
    operands = leaves(4)
    upstream = output_gradient(UPSTREAM, 9)
    theirs = pulled(evaluate(operands, point).output, operands, upstream)
    assert margin(judged(operands, upstream, "float64", point), theirs) <= 1.0


@pytest.mark.parametrize("point", POINTS, ids=described)
@pytest.mark.parametrize("dtype", list(PRECISIONS))
@pytest.mark.parametrize("late", [False, True])
def test_torch_line_by_line_keeps_the_bounds(
    point: golden.Semantics, dtype: str, *, late: bool
) -> None:
    """Every step in the working dtype, heads of a group added up before or after turning back."""
    for seed in SEEDS:
        operands = leaves(seed, PRECISIONS[dtype])
        upstream = output_gradient(UPSTREAM, seed).to(PRECISIONS[dtype])
        actual = pulled(written_out(operands, point, late=late), operands, upstream)
        assert margin(judged(operands, upstream, dtype, point, eager=True), actual) <= 1.0


def _halved(heads: Tensor, start: int, point: golden.Semantics) -> Tensor:
    heads_prepared = prepared(heads, start, point)
    return 0.5 * heads_prepared + 0.5 * heads_prepared.detach()


def _not_turned_back(heads: Tensor, start: int, point: golden.Semantics) -> Tensor:
    heads = normalised(heads, point)
    return heads + (turned(heads, start, point) - heads).detach()


def _norm_is_a_constant(heads: Tensor, start: int, point: golden.Semantics) -> Tensor:
    centred = heads - heads.mean(-1, keepdim=True) if point.qk_norm == "layer" else heads
    divisor = golden.norms(centred.detach(), point).to(heads.dtype)
    return turned(centred / divisor, start, point)


@pytest.mark.parametrize("point", POINTS, ids=described)
@pytest.mark.parametrize("prepare", [_halved, _not_turned_back, _norm_is_a_constant])
def test_a_wrong_way_back_is_beyond_them(point: golden.Semantics, prepare: Prepare) -> None:
    """Gradients cut in half, not turned back, or past the norm: in float32, with every seed."""
    if prepare is _not_turned_back and point.rotary == "none":
        point = point.replace(rotary="halves")
    if prepare is _norm_is_a_constant and point.qk_norm == "none":
        point = point.replace(qk_norm="rms")
    for seed in SEEDS:
        operands = leaves(seed, torch.float32)
        upstream = output_gradient(UPSTREAM, seed).float()
        bounded = judged(operands, upstream, "float32", point)
        right = pulled(written_out(operands, point), operands, upstream)
        wrong = pulled(written_out(operands, point, prepare), operands, upstream)
        assert margin(bounded, right) <= 1.0 < margin(bounded, wrong)


def test_heads_that_may_vanish_have_a_wide_bound() -> None:
    """A projected head within its own error of zero may be divided by much less than its norm."""
    point = golden.STANDARD.replace(qk_norm="rms", qk_norm_epsilon=1e-3)
    operands = {name: tensor.detach() for name, tensor in leaves(6).items()}
    upstream = output_gradient(UPSTREAM, 9)
    plain = judged(operands, upstream, "bfloat16", point)["query"]
    projected = operands["query"][0, 0] @ operands["q"].mT
    cancelled = {**operands, "q_bias": -projected * (1.0 + 2.0**-9)}
    wide = judged(cancelled, upstream, "bfloat16", point)["query"]
    part, others = wide.worst[0, 0] / wide.value[0, 0].abs(), plain.worst / plain.value.abs()
    assert float(part.median()) > 10.0 * float(others.median())
