"""The variance of the exponent in each softmax weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract
from .distances import distance_size
from .keys import LiveKeys
from .scores import fills, finite_size, partners_of_query_error
from .sinks import has_sink


def exponent_variance(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    deviations: float,
    *,
    query_variance: Tensor | None = None,
    key_variance: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The variance of each logit's error up to what a row has in common, and the softcap's slope.

    The errors that query ``[B, H, Lq, D]`` and key ``[B, H, Lk, D]`` carry are given as variances,
    None where they are exact. Both results are float64 ``[B, H, Lq, Lk]``; the variance is zero
    where a key is not live. The slope is the largest within reach of the score's own error, None
    without a softcap.
    """
    variance = _score_variance(attention, live, contract, query_variance, key_variance)
    slope = _slope_within_reach(attention, variance, deviations)
    unit, stored = contract.accumulator_roundoff, contract.score_roundoff
    if slope is not None:
        variance.mul_(slope.square())
    if attention.softcap is not None:
        capping = (model.SOFTCAP_ROUNDINGS * unit) ** 2 + (model.SOFTCAP_STORES * stored) ** 2
        variance.addcmul_(attention.capped, attention.capped, value=capping)
    if attention.alibi is not None:
        _add_distance_variance(variance, attention, contract)
    if attention.bias is not None:
        _add_bias_variance(variance, attention, attention.bias, contract)
    if stored:
        _add_logit_stores(variance, attention, live, stored**2)
    exponent = (model.EXPONENT_ROUNDINGS * unit) ** 2
    blocks = math.ceil(live.key_length / contract.key_block)
    rescaling = blocks * ((contract.exp_error + model.RESCALE_ROUNDINGS) * unit) ** 2
    shared = live.largest.square().mul_(exponent).add_(rescaling)
    variance.addcmul_(attention.logits, attention.logits, value=exponent).add_(shared)
    if fills(attention.semantics):
        variance = _filled(variance, attention, live, exponent, rescaling)
    return live.only(variance), slope


def _score_variance(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    query_variance: Tensor | None,
    key_variance: Tensor | None,
) -> Tensor:
    """Products of operands that may be rounded, a random walk of partial sums, a few roundings."""
    size, unit = attention.query.shape[-1], contract.accumulator_roundoff
    square = attention.scale**2
    terms = 2.0 * contract.operand_roundoff**2 + (model.WALK * size + model.PRODUCTS) * unit**2
    scaling = contract.pre_scaling_roundings * contract.unit_roundoff**2
    if contract.scales_query_alone:
        of_query = attention.query.square().mul_(scaling)
        query_variance = of_query if query_variance is None else query_variance + of_query
    else:
        terms += scaling
    partners = attention.key.square().mul_(square * terms)
    if key_variance is not None:
        partners.add_(key_variance, alpha=square)
    variance = attention.query.square() @ partners.transpose(-1, -2)
    if query_variance is not None:
        partners = partners_of_query_error(attention, live).square_().mul_(square)
        variance += query_variance @ partners.transpose(-1, -2)
    result = (model.DRIFT * size + model.SCORE_ROUNDINGS) * unit**2
    result += model.SCORE_STORES * contract.score_roundoff**2
    return variance.addcmul_(attention.scores, attention.scores, value=result)


def _slope_within_reach(
    attention: golden.Attention, variance: Tensor, deviations: float
) -> Tensor | None:
    """The largest slope of ``cap tanh(s / cap)`` that a score's error may reach.

    A cap after the mask has its slope elsewhere: there it counts as 1.
    """
    if attention.softcap is None or attention.semantics.softcap_order != "before-mask":
        return None
    reach = variance.sqrt().mul_(-deviations).add_(attention.scores.abs()).clamp_min_(0.0)
    nearest = reach.div_(attention.softcap).clamp_max_(model.LARGEST_GROWTH)
    return nearest.cosh_().square_().reciprocal_()


def _add_bias_variance(
    variance: Tensor, attention: golden.Attention, bias: Tensor, contract: Contract
) -> None:
    """The sum and the conversion of the bias, and a store of the logits."""
    rounding = (model.BIAS_ROUNDINGS * contract.accumulator_roundoff) ** 2
    before = attention.semantics.bias_order == "before-scale"
    factor = attention.scale if before else 1.0
    variance.addcmul_(attention.modified, attention.modified, value=rounding)
    if attention.alibi is not None:
        variance.add_(attention.alibi.square(), alpha=rounding)
    variance.add_(finite_size(bias).square_().mul_(rounding * factor**2))


def _add_distance_variance(
    variance: Tensor, attention: golden.Attention, contract: Contract
) -> None:
    """The sum with a bias by distance; errors of that bias itself are no random numbers."""
    rounding = (model.BIAS_ROUNDINGS * contract.accumulator_roundoff) ** 2
    variance.addcmul_(attention.modified, attention.modified, value=rounding)
    variance.add_(distance_size(attention).square_(), alpha=rounding)


def _add_logit_stores(
    variance: Tensor, attention: golden.Attention, live: LiveKeys, square: float
) -> None:
    """Logits that are stored: once for each of the biases, and once more beside a sink."""
    biases = (attention.alibi is not None) + (attention.bias is not None)
    if biases:
        variance.addcmul_(attention.logits, attention.logits, value=biases * square)
    if has_sink(attention):
        distance = (attention.logits - live.largest).nan_to_num_(neginf=0.0)
        variance.addcmul_(distance, distance, value=model.SINK_STORES * square)


def _filled(
    variance: Tensor,
    attention: golden.Attention,
    live: LiveKeys,
    exponent: float,
    rescaling: float,
) -> Tensor:
    """A logit that a finite fill replaced is exact: only its distance to the maximum is rounded."""
    distance = (attention.logits - live.largest).square_().mul_(exponent).add_(rescaling)
    return torch.where(~attention.allowed & torch.isfinite(attention.logits), distance, variance)
