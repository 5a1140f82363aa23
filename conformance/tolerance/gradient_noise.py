"""How much independent roundings move a weighted sum of gradients, whatever they share.

Errors of single elements say how large each is, not how they go together. For a sum over all
elements that is decided by each rounding's own effect on it: the backward pass of the backward
pass. With X the derivative of the sum by dS, Y that by the P of dV, and Z = X * dL/dS,

    by dP = P * (Z - z),  by D = -z,  by P = Z * (dP - D) - z dP + Y  with z = rowsum(P * Z),
    by L = P * (by P - rowsum(P * by P)),  by S = by L * dL/dS + X * dL * d2L/dS2
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .statistical_gradients import Propagation


@dataclass(frozen=True, kw_only=True, eq=False)
class Sum:
    """Weights of the sum on the gradients of the query heads; None stands for zeros.

    ``query [B, H, Lq, D]``, ``key [B, H, Lk, D]``, ``value [B, H, Lk, Dv]``; and on the answer,
    which the gradient of a layer's output matrix is made of: ``output [B, H, Lq, Dv]``.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    output: Tensor | None = None


def noise(weights: Sum, spread: Propagation) -> float:
    """One deviation of ``<error, weights>`` by the roundings before the last sums."""
    own, pairs = spread.gradients, spread.pairs
    effect = _effect(weights, spread)
    common = own.score_gradient * effect.stored + own.weights * effect.weight
    parts = [
        (effect.logit, pairs.exponent),
        (effect.product, pairs.product),
        (effect.row_sum, pairs.row_sum),
        (effect.stored * own.logit_gradient, pairs.slope),
        (effect.stored, pairs.stored),
        (effect.weight, pairs.weights),
        (common.sum(dim=-1, keepdim=True), pairs.common),
        *_by_operands(weights, effect, spread),
    ]
    return math.sqrt(sum(float((by.square() * variance).sum()) for by, variance in parts))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Effect:
    """The derivative of the sum by what pairs ``[B, H, Lq, Lk]`` and rows (D) compute.

    ``stored`` is by dS, ``weight`` by the P of dV and of the answer.
    """

    stored: Tensor
    weight: Tensor
    row_sum: Tensor
    product: Tensor
    logit: Tensor
    score: Tensor


def _effect(weights: Sum, spread: Propagation) -> _Effect:
    own = spread.gradients
    stored, weight = _by_score_gradient(weights, spread), _by_weight(weights, spread)
    passed = stored * own.slope
    total = (own.weights * passed).sum(dim=-1, keepdim=True)
    difference = own.weight_gradient - own.row_sum
    by_any = passed * difference - total * own.weight_gradient + weight
    logit = own.weights * (by_any - (own.weights * by_any).sum(dim=-1, keepdim=True))
    return _Effect(
        stored=stored,
        weight=weight,
        row_sum=-total,
        product=own.weights * (passed - total),
        logit=logit,
        score=logit * own.slope + stored * own.logit_gradient * own.curvature,
    )


def _by_operands(
    weights: Sum, effect: _Effect, spread: Propagation
) -> Iterator[tuple[Tensor, Tensor]]:
    """The derivative by each operand that carries a variance, with that variance."""
    own, carried, attention = spread.gradients, spread.incoming, spread.gradients.attention
    if carried.query is not None:
        by_query = effect.score @ attention.key
        if weights.key is not None:
            by_query = by_query + own.score_gradient @ weights.key
        yield attention.scale * by_query, carried.query
    if carried.key is not None:
        by_key = effect.score.mT @ attention.query
        if weights.query is not None:
            by_key = by_key + own.score_gradient.mT @ weights.query
        yield attention.scale * by_key, carried.key
    if carried.value is not None:
        by_value = effect.product.mT @ own.output_gradient
        if weights.output is not None:
            by_value = by_value + own.weights.mT @ weights.output
        yield by_value, carried.value
    if carried.output_gradient is not None:
        by_gradient = effect.product @ attention.value
        if weights.value is not None:
            by_gradient = by_gradient + own.weights @ weights.value
        yield by_gradient, carried.output_gradient


def _by_weight(weights: Sum, spread: Propagation) -> Tensor:
    """The derivative of the sum by the weights that meet the output gradient or the values."""
    total = torch.zeros_like(spread.gradients.weights)
    if weights.value is not None:
        total += spread.gradients.output_gradient @ weights.value.mT
    if weights.output is not None:
        total += weights.output @ spread.gradients.attention.value.mT
    return total


def _by_score_gradient(weights: Sum, spread: Propagation) -> Tensor:
    """The derivative of the sum by dS, a scaled score's gradient."""
    attention = spread.gradients.attention
    total = torch.zeros_like(spread.gradients.weights)
    if weights.query is not None:
        total += weights.query @ attention.key.mT
    if weights.key is not None:
        total += attention.query @ weights.key.mT
    return total.mul_(attention.scale)
