"""The effect of an error of the logit scale on gradients, and of independent roundings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .backward_pass import BackwardPass
from .contract import Contract
from .gradient import Scaling
from .spread import scale_rounding
from .statistical_gradients import Propagation
from .storing import backward_contract
from .visible_keys import sum_groups


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedSum:
    """Coefficients of a weighted sum of the gradients of the query heads; None stands for zeros.

    ``query [B, H, Lq, D]``, ``key [B, H, Lk, D]``, ``value [B, H, Lk, Dv]``; and on the answer,
    which the gradient of a layer's output matrix is made of: ``output [B, H, Lq, Dv]``.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    output: Tensor | None = None


def noise(weights: WeightedSum, spread: Propagation) -> float:
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
    """The derivative of a sum of errors by pairs ``[B, H, Lq, Lk]`` and rows (D).

    ``stored`` is by dS, ``weight`` by the P of dV and of the answer.
    """

    stored: Tensor
    weight: Tensor
    row_sum: Tensor
    product: Tensor
    logit: Tensor
    score: Tensor


def _effect(weights: WeightedSum, spread: Propagation) -> _Effect:
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
    weights: WeightedSum, effect: _Effect, spread: Propagation
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the derivative by each operand carrying a variance, with this variance."""
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


def _by_weight(weights: WeightedSum, spread: Propagation) -> Tensor:
    """Return the derivative by the weights that meet the output gradient or the values."""
    total = torch.zeros_like(spread.gradients.weights)
    if weights.value is not None:
        total += spread.gradients.output_gradient @ weights.value.mT
    if weights.output is not None:
        total += weights.output @ spread.gradients.attention.value.mT
    return total


def _by_score_gradient(weights: WeightedSum, spread: Propagation) -> Tensor:
    """Return the derivative by dS, a scaled score's gradient."""
    attention = spread.gradients.attention
    total = torch.zeros_like(spread.gradients.weights)
    if weights.query is not None:
        total += weights.query @ attention.key.mT
    if weights.key is not None:
        total += attention.query @ weights.key.mT
    return total.mul_(attention.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Slopes:
    """Derivatives by the logarithm of the scale of the scores, for each query head.

    ``query [B, H, Lq, D]``, ``key [B, H, Lk, D]`` and ``value [B, H, Lk, Dv]`` of the gradients,
    ``output [B, H, Lq, Dv]`` of the answer.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


def slopes(gradients: BackwardPass) -> Slopes:
    """How the weights carry an error of the scale into each gradient."""
    attention, weights = gradients.attention, gradients.weights
    logit = gradients.slope * attention.scores
    moved = weights * (logit - (weights * logit).sum(dim=-1, keepdim=True))
    row_sum = (moved * gradients.weight_gradient).sum(dim=-1, keepdim=True)
    score = moved * (gradients.weight_gradient - gradients.row_sum) - weights * row_sum
    score = score * gradients.slope
    score += gradients.logit_gradient * gradients.curvature * attention.scores
    return Slopes(
        query=attention.scale * (score @ attention.key),
        key=attention.scale * (score.mT @ attention.query),
        value=moved.mT @ gradients.output_gradient,
        output=moved @ attention.value,
    )


def core_scaling(spread: Propagation, contract: Contract, num_kv_heads: int) -> dict[str, Scaling]:
    """The scaling of the gradients of "query", "key" and "value", in their shapes."""
    gradients = spread.gradients
    derivatives = slopes(gradients)
    scale, common = roundings(gradients, contract)
    direct = {
        "query": gradients.query,
        "key": gradients.key,
        "value": torch.zeros_like(gradients.value),
    }

    def scaling(name: str, heads: int) -> Scaling:
        semantics = gradients.attention.semantics

        def noise_of(weights: Tensor) -> float:
            every = golden.repeat_heads(weights, gradients.query.shape[1], semantics)
            return contract.sides * noise(WeightedSum(**{name: every}), spread)

        return Scaling(
            direct=sum_groups(direct[name], heads, semantics),
            indirect=sum_groups(getattr(derivatives, name), heads, semantics),
            scale_rounding=scale,
            common_rounding=common,
            noise=noise_of,
        )

    counts = {"query": gradients.query.shape[1], "key": num_kv_heads, "value": num_kv_heads}
    return {name: scaling(name, heads) for name, heads in counts.items()}


def roundings(gradients: BackwardPass, contract: Contract) -> tuple[float, float]:
    """Return the relative errors common to all elements: of the scale, and further ones.

    Weights recomputed as exp(score - lse) keep the error of exp, which may have one sign for all
    scores, and that of the log-sum-exp, one number a row.
    """
    attention, unit = gradients.attention, contract.accumulator_roundoff
    logarithm = (gradients.live.largest - attention.weights.amax(dim=-1, keepdim=True).log()).abs()
    finite = logarithm.where(logarithm.isfinite(), 0.0)
    largest = float(finite.max()) if finite.numel() else 0.0
    common = backward_contract(contract).exp_error + model.LOG_SUM_EXP_ROUNDINGS * largest
    scale = scale_rounding(attention.scale, contract)
    return contract.sides * scale, contract.sides * common * unit
