"""The error of the weighted sum of the values, of its division, and of the stored result."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract, gamma
from .keys import LiveKeys, extremes
from .scores import exponential_error
from .weights import Perturbed, envelope_mean, mean_error


def weighted_sum_error(
    attention: golden.Attention,
    perturbed: Perturbed,
    live: LiveKeys,
    contract: Contract,
    value_error: Tensor | None,
) -> Tensor:
    """Everything after the exponentials, whose envelopes are given: ``[B, H, Lq, Dv]``.

    The moved mean comes first. Numerator and denominator are rounded separately: the first relative
    to the sum of magnitudes, the second relative to the result.
    """
    stored = contract.at("rounding")
    contract = contract.at("accumulation")
    product, division = _roundings(live.key_length, contract)
    size = attention.value.abs()
    seen = None if perturbed.far is None else extremes(attention.value, live, perturbed.far)
    largest = None if seen is None else torch.maximum(seen[0].abs(), seen[1].abs())
    summed = envelope_mean(size, perturbed, largest)
    error = mean_error(attention, perturbed, live, seen).mul_(1.0 + division)
    error.add_(summed, alpha=product)
    error.add_(attention.output.abs(), alpha=division)
    exact_mean = summed if perturbed.far is None else attention.weights @ size
    error.addcmul_(exact_mean, log_sum_exp_error(attention, live, contract))
    error.add_(merge_error(attention, live, contract))
    if value_error is not None:
        if perturbed.far is not None:
            largest, _ = extremes(value_error, live, perturbed.far)
        error.add_(envelope_mean(value_error, perturbed, largest), alpha=1.0 + product)
    if contract.weight_underflow:
        lost = (perturbed.upper * perturbed.inverse).clamp_max_(contract.weight_underflow)
        error += lost @ size
    flushed = size.sum(dim=-2, keepdim=True).add_(live.key_length)
    error.add_(flushed, alpha=contract.accumulator_underflow)
    if contract.score_roundoff:
        error += model.PARTIAL_STORES * contract.underflow
    return _stored(error, attention.output, stored)


def mean_bound(
    attention: golden.Attention, empty: Tensor, contract: Contract, value_error: Tensor | None
) -> Tensor:
    """The bound for rows without a key whose rule is a mean: equal weights, then a weighted sum.

    The exponent of an equal weight is exactly zero; exp, the rescaling and the sum still round.
    """
    weights = torch.where(empty, attention.weights, 0.0)
    value = attention.value.masked_fill(~(weights > 0).any(dim=-2).unsqueeze(-1), 0.0)
    key_length = weights.shape[-1]
    exponentials, stored = contract.at("exp"), contract.at("rounding")
    contract = contract.at("accumulation")
    product, division = _roundings(key_length, contract)
    relative = product + division + 2.0 * exponential_error(key_length, exponentials)
    size = value.abs()
    error = (weights @ size).mul_(relative + contract.weight_underflow * key_length)
    if value_error is not None:
        error.add_(weights @ value_error, alpha=1.0 + relative)
    flushed = size.sum(dim=-2, keepdim=True).add_(key_length)
    error = error + flushed * contract.accumulator_underflow
    return _stored(error, weights @ value, stored)


def _roundings(key_length: int, contract: Contract) -> tuple[float, float]:
    """Relative errors of the sum of products, and of dividing by the sum of the weights."""
    unit = contract.accumulator_roundoff
    blocks = math.ceil(key_length / contract.key_block)
    total = gamma(key_length + blocks + model.SUM_ROUNDINGS, unit) + contract.weight_roundoff
    total += model.PARTIAL_STORES * contract.score_roundoff
    return total + contract.operand_error, total + model.DIVISION_ROUNDINGS * unit


def log_sum_exp_error(attention: golden.Attention, live: LiveKeys, contract: Contract) -> Tensor:
    """The relative error of ``exp(logit - lse)`` from the rounded lse, for ``[B, H, Lq, 1]``.

    Forms that do not divide by the sum of these weights (partial results merged by their lse) keep
    it. With lse = m + log(l), 1 <= l <= n, rounding to nearest errs by no more than log(l), since m
    is itself representable; one live key has none.
    """
    logarithm = attention.weights.amax(dim=-1, keepdim=True).log_()
    error = (live.largest - logarithm).abs_().mul_(contract.accumulator_roundoff)
    count = live.log_count()
    if isinstance(count, float):
        error.clamp_max_(count)
    else:  # fmin: in an empty row the lse is NaN, the logarithm of its count 0
        error = torch.fmin(error, count)
    return error.mul_(model.LOG_SUM_EXP_ROUNDINGS)


def merge_error(attention: golden.Attention, live: LiveKeys, contract: Contract) -> Tensor:
    """What it costs that the share of a partial result is rounded: ``[B, H, Lq, Dv]``.

    The share is off by some roundoffs, however small it is. Partial results are means of values, so
    they are apart by no more than the values are. A row that sees one key has nothing to merge.
    """
    blocks = math.ceil(live.key_length / contract.key_block)
    share = blocks * contract.merge_roundings * contract.accumulator_roundoff
    return live.spread(attention.value) * share * live.several()


def _stored(error: Tensor, output: Tensor, contract: Contract) -> Tensor:
    """Round the result to the working dtype."""
    unit = contract.unit_roundoff
    return error.mul_(1.0 + unit).add_(output.abs(), alpha=unit).add_(contract.underflow)
