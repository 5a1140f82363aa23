"""The error of each step, worst case: exponents, softmax weights, the sum of the values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract, gamma
from .learned import is_tempered
from .modified_gradients import modified_error
from .positions import distance_error, distance_size
from .spread import EXACT, Carried
from .visible_keys import LiveKeys, extremes, has_memory, has_sink


def exponent_error(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    carried: Carried = EXACT,
    *,
    whole: bool = False,
) -> Tensor:
    """Return each logit's error, up to a part common to a row unless ``whole``.

    The error of exp itself and of the rescaling of an online softmax count as errors of the
    exponent. Returns float64 ``[B, H, Lq, Lk]``, zero where a key is not live.
    """
    scores, exponentials = contract.at("score"), contract.at("exp")
    error = capped_error(attention, live, contract, carried, whole=whole)
    if attention.semantics.score_mod is not None:
        error = modified_error(error, attention, scores)
    if attention.alibi is not None:
        error += distance_error(attention, distance_size(attention), scores)
    if attention.bias is not None:
        _add_bias_error(error, attention, attention.bias, scores)
    if scores.score_roundoff:
        _add_logit_stores(error, attention, live, scores.score_roundoff)
    unit = exponentials.accumulator_roundoff
    shared = live.largest.abs().mul_(model.EXPONENT_ROUNDINGS * unit)
    error.add_(attention.logits.abs(), alpha=model.EXPONENT_ROUNDINGS * unit)
    error.add_(shared)
    if fills(attention.semantics):
        error = _filled_error(error, attention, live, unit)
    return live.only(error.add_(exponential_error(live.key_length, exponentials)))


def capped_error(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    carried: Carried,
    *,
    whole: bool = False,
) -> Tensor:
    """Return the error of each capped score, the input of a user's function."""
    contract = contract.at("score")
    error = _score_error(attention, live, contract, carried, whole=whole)
    if contract.score_roundoff:
        stores = model.SCORE_STORES + is_tempered(attention)
        _add_rounding(error, attention.scores, contract.score_roundoff, times=stores)
    if attention.softcap is not None:
        error = _capped_error(error, attention, attention.softcap, contract)
    return error


def fills(semantics: golden.Semantics) -> bool:
    """Whether an ignored key keeps a finite logit, the same for all."""
    return semantics.mask_operation == "replace" and math.isfinite(semantics.mask_fill)


def _filled_error(
    error: Tensor, attention: golden.Attention, live: LiveKeys, unit: float
) -> Tensor:
    """Replace the error of filled logits: exact but for their rounded distance to the maximum."""
    distance = (attention.logits - live.largest).abs()
    filled = ~attention.allowed & torch.isfinite(attention.logits)
    return torch.where(filled, model.EXPONENT_ROUNDINGS * unit * distance, error)


def exponential_error(key_length: int, contract: Contract) -> float:
    """The error of exp and of the rescaling once a block, as an error of the exponent."""
    unit = contract.accumulator_roundoff
    blocks = math.ceil(key_length / contract.key_block)
    rescaling = gamma(blocks, (contract.exp_error + model.RESCALE_ROUNDINGS) * unit)
    return contract.exp_error * unit + rescaling


def _score_error(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    carried: Carried,
    *,
    whole: bool,
) -> Tensor:
    query_error, key_error = carried.query, carried.key
    scale, size = abs(attention.scale), attention.query.shape[-1]
    roundings = model.SCORE_ROUNDINGS + is_tempered(attention)
    relative = gamma(size + roundings, contract.accumulator_roundoff)
    relative += contract.operand_error
    query, key = attention.query.abs(), attention.key.abs()
    if query_error is not None:
        query += query_error
    scaling = (
        contract.pre_scaling_roundings * contract.unit_roundoff * (1.0 + contract.unit_roundoff)
    )
    if contract.scales_query_alone:
        of_query = query * scaling
        query_error = of_query if query_error is None else query_error + of_query
    else:
        relative += scaling
    if key_error is None:
        key *= scale * relative
    else:
        key = (key + key_error).mul_(relative).add_(key_error).mul_(scale)
    error = query @ key.transpose(-1, -2)
    if query_error is not None:
        partners = attention.key if whole else partners_of_query_error(attention, live)
        partners = partners.abs().mul_(scale)
        error += query_error @ partners.transpose(-1, -2)
    underflow = contract.accumulator_underflow * (size + 2) * (1.0 + scale)
    return error.add_(underflow)


def partners_of_query_error(attention: golden.Attention, live: LiveKeys) -> Tensor:
    """Return the factors on an error of the query: ``[B, H, Lk, D]``.

    Softmax over the keys ignores a part common to a row, so any vector may be subtracted from all
    keys; subtracting the mean makes the keys small. A softcap does not ignore the common part.
    """
    semantics = attention.semantics
    bent = attention.softcap is not None or semantics.score_mod is not None
    if bent or semantics.softmax_axis != "key":
        return attention.key.clone()
    return attention.key - live.mean(attention.key)


def _capped_error(
    error: Tensor, attention: golden.Attention, softcap: float, contract: Contract
) -> Tensor:
    """Return the error of ``cap * tanh(score / cap)``: steepest slope in reach, and tanh's own.

    For a cap that includes the bias the slope counts as 1: its slope is applied elsewhere.
    """
    if not attention.semantics.caps("bias"):
        nearest = (attention.scores.abs() - error).clamp_min_(0.0).div_(softcap)
        error = error / torch.cosh(nearest.clamp_max_(model.LARGEST_GROWTH)).square_()
    own = (
        model.SOFTCAP_ROUNDINGS * contract.accumulator_roundoff
        + model.SOFTCAP_STORES * contract.score_roundoff
    )
    return error.add_(attention.capped.abs(), alpha=own)


def _add_logit_stores(
    error: Tensor, attention: golden.Attention, live: LiveKeys, roundoff: float
) -> None:
    """Add the stores of logits: one for each bias, and one more beside a sink."""
    biases = (attention.alibi is not None) + (attention.bias is not None)
    if biases:
        _add_rounding(error, attention.logits, roundoff, times=biases)
    if has_sink(attention):
        distance = (attention.logits - live.largest).nan_to_num_(neginf=0.0)
        _add_rounding(error, distance, roundoff, times=model.SINK_STORES)


def finite_size(bias: Tensor) -> Tensor:
    """Return magnitudes of addends; minus infinity is exact, and live before a cap."""
    return bias.abs().masked_fill_(torch.isinf(bias), 0.0)


def _add_bias_error(
    error: Tensor, attention: golden.Attention, bias: Tensor, contract: Contract
) -> None:
    rounding = model.BIAS_ROUNDINGS * contract.accumulator_roundoff
    before = attention.semantics.bias_order == "before-scale"
    error.add_(finite_size(attention.modified), alpha=rounding)
    if attention.alibi is not None:
        error.add_(attention.alibi.abs(), alpha=rounding)
    factor = rounding * (abs(attention.scale) if before else 1.0)
    error.add_(finite_size(bias), alpha=factor)


def _add_rounding(error: Tensor, exact: Tensor, roundoff: float, *, times: int) -> None:
    """Add roundings of stored values, relative to the exact values and their errors so far."""
    error.mul_(1.0 + times * roundoff).add_(exact.abs(), alpha=times * roundoff)


@dataclass(frozen=True, kw_only=True)
class Perturbed:
    """Envelopes of the weights ``p_j exp(e_j)`` before division by their sum.

    ``upper`` is their largest value and ``excess`` its distance above ``p_j``, both ``[B, H, Lq,
    Lk]``; ``inverse`` is one over the smallest sum and ``change`` the mean square of the relative
    change under the weights, over the smallest sum squared, ``[B, H, Lq, 1]``. ``far`` marks the
    rows ``[B, H, Lq]`` changing so much that the hull counts; None without such rows.
    """

    upper: Tensor
    excess: Tensor
    inverse: Tensor
    change: Tensor
    far: Tensor | None


def perturb(attention: golden.Attention, error: Tensor, live: LiveKeys) -> Perturbed:
    """The envelopes for exponents off by up to ``error [B, H, Lq, Lk]``."""
    weights = attention.weights
    peak = float(error.amax())
    growth = torch.expm1(error.clamp_max(model.LARGEST_GROWTH))
    if peak <= model.LARGEST_GROWTH:
        excess = weights * growth
        upper = weights + excess
    else:  # weights that float64 rounded to zero may come back
        distance = attention.logits - live.largest + weights.amax(dim=-1, keepdim=True).log()
        upper = live.only(torch.exp((distance + error).clamp_max_(model.LARGEST_EXPONENT)))
        excess = upper * (growth / (1.0 + growth))
    smallest = (weights / (1.0 + growth)).sum(dim=-1, keepdim=True)
    inverse = smallest.clamp_min_(model.SMALLEST_DENOMINATOR).reciprocal_()
    # excess**2 / weight = excess * growth, and that exists where the weight has underflowed.
    change = (excess * growth).sum(dim=-1, keepdim=True).mul_(inverse.square())
    far = None if peak <= model.HULL_MATTERS else ~(change <= model.HULL_MATTERS**2).squeeze(-1)
    return Perturbed(
        upper=upper,
        excess=excess,
        inverse=inverse,
        change=change,
        far=None if far is None or not bool(far.any()) else far,
    )


def mean_error(
    attention: golden.Attention,
    perturbed: Perturbed,
    live: LiveKeys,
    ranges: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return the error of the weighted mean of the values: ``[B, H, Lq, Dv]``.

    With o = sum p v the moved mean is off by ``sum p (exp(e) - 1) (v - o) / sum p exp(e)``, since
    the p sum to 1. The error is bounded in three ways, and the smallest counts: by the triangle
    inequality about the mean of the values, by Cauchy-Schwarz with the variance of the values under
    the weights, and by the hull: a weighted mean stays among the values. ``ranges`` holds the
    largest and smallest value attended by each far row (None without far rows).
    """
    weights, value, output = attention.weights, attention.value, attention.output
    centre = live.mean(value)
    from_centre, shift = live.only_attended(value - centre), output - centre
    second = weights @ from_centre.square()
    variance = (second - shift.square()).clamp_min_(0.0)
    # The difference cancels: what float64 may have lost is added back.
    lost = (live.key_length + 8) * model.UNIT_ROUNDOFF["float64"]
    variance.add_(second, alpha=lost)
    spread = variance.mul_(perturbed.change).sqrt_()
    total = perturbed.excess.sum(dim=-1, keepdim=True)
    triangle = (perturbed.excess @ from_centre.abs_()).addcmul_(total, shift.abs_())
    # fmin: an overflow in one of the two (0 times infinity) leaves the other.
    moved = torch.fmin(triangle.mul_(perturbed.inverse), spread)
    if perturbed.far is not None and ranges is not None:
        high, low = ranges
        chosen = output[perturbed.far]
        hull = torch.maximum(high - chosen, chosen - low).clamp_min_(0.0)
        moved[perturbed.far] = torch.fmin(moved[perturbed.far], hull)
    return moved


def envelope_mean(size: Tensor, perturbed: Perturbed, largest: Tensor | None) -> Tensor:
    """Return the largest weighted mean of magnitudes ``[B, H, Lk, Dv]``.

    A mean is at most the ``largest`` of them, given for far rows; None without far rows.
    """
    mean = (perturbed.upper @ size).mul_(perturbed.inverse)
    if perturbed.far is not None and largest is not None:
        mean[perturbed.far] = torch.fmin(mean[perturbed.far], largest)
    return mean


def weighted_sum_error(
    attention: golden.Attention,
    perturbed: Perturbed,
    live: LiveKeys,
    contract: Contract,
    value_error: Tensor | None,
) -> Tensor:
    """The error of everything after the exponentials: ``[B, H, Lq, Dv]``.

    The moved mean comes first. Numerator and denominator are rounded separately: the first relative
    to the sum of magnitudes, the second relative to the result.
    """
    stored = contract.at("rounding")
    contract = contract.at("accumulation")
    product, division = sum_roundings(live.key_length, contract)
    size = attention.value.abs()
    ranges = None if perturbed.far is None else extremes(attention.value, live, perturbed.far)
    largest = None if ranges is None else torch.maximum(ranges[0].abs(), ranges[1].abs())
    summed = envelope_mean(size, perturbed, largest)
    error = mean_error(attention, perturbed, live, ranges).mul_(1.0 + division)
    error.add_(summed, alpha=product)
    error.add_(attention.output.abs(), alpha=division)
    error.addcmul_(summed, log_sum_exp_error(attention, live, contract))
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
    return rounded_result(error, attention.output, stored)


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
    product, division = sum_roundings(key_length, contract)
    relative = product + division + 2.0 * exponential_error(key_length, exponentials)
    size = value.abs()
    error = (weights @ size).mul_(relative + contract.weight_underflow * key_length)
    if value_error is not None:
        error.add_(weights @ value_error, alpha=1.0 + relative)
    flushed = size.sum(dim=-2, keepdim=True).add_(key_length)
    error = error + flushed * contract.accumulator_underflow
    return rounded_result(error, weights @ value, stored)


def sum_roundings(key_length: int, contract: Contract) -> tuple[float, float]:
    """Relative errors of the sum of products, and of dividing by the sum of the weights."""
    unit = contract.accumulator_roundoff
    blocks = math.ceil(key_length / contract.key_block)
    total = gamma(key_length + blocks + model.SUM_ROUNDINGS, unit) + contract.weight_roundoff
    total += model.PARTIAL_STORES * contract.score_roundoff
    return total + contract.operand_error, total + model.DIVISION_ROUNDINGS * unit


def gate_unit(contract: Contract) -> float:
    """Return the relative error of a gate behind the attention, stores on both sides included."""
    each = contract.accumulator_roundoff + contract.score_roundoff
    return model.SINK_GATE_ROUNDINGS * each + contract.unit_roundoff


def gated_value(attention: golden.Attention, contract: Contract) -> Tensor | float:
    """The error ``[B, H, 1, Dv]`` of a memory's share as one minus a gate, else 0.0."""
    if not has_memory(attention):
        return 0.0
    return gate_unit(contract) * attention.value[..., -1:, :].abs()


def log_sum_exp_error(attention: golden.Attention, live: LiveKeys, contract: Contract) -> Tensor:
    """Return the relative error of ``exp(logit - lse)`` from the rounded lse: ``[B, H, Lq, 1]``.

    Forms that do not divide by the sum of these weights (partial results merged by their lse) keep
    this error. With lse = m + log(l), 1 <= l <= n, rounding to nearest errs by no more than log(l),
    since m is itself representable; a single live key has no error. The exponential of the error
    counts: far from zero each weight of n equal ones may be one, and all together no more than n.
    """
    logarithm = attention.weights.amax(dim=-1, keepdim=True).log_()
    unit = model.LOG_SUM_EXP_ROUNDINGS * contract.accumulator_roundoff
    error = (live.largest - logarithm).abs_().mul_(unit)
    count = live.log_count()
    if isinstance(count, float):
        error.clamp_max_(count)
    else:  # fmin: in an empty row the lse is NaN, the logarithm of its count 0
        error = torch.fmin(error, count)
    return error.expm1_()


def merge_error(attention: golden.Attention, live: LiveKeys, contract: Contract) -> Tensor:
    """Return the error from rounding the shares of partial results: ``[B, H, Lq, Dv]``.

    The share is off by several roundoffs, however small it is. Partial results are means of values,
    so their distance is at most that of the values. A row attending one key has nothing to merge.
    """
    blocks = math.ceil(live.key_length / contract.key_block)
    share = blocks * contract.merge_roundings * contract.accumulator_roundoff
    return live.spread(attention.value) * share * live.several()


def rounded_result(error: Tensor, output: Tensor, contract: Contract) -> Tensor:
    """Round the result to the working dtype."""
    unit = contract.unit_roundoff
    return error.mul_(1.0 + unit).add_(output.abs(), alpha=unit).add_(contract.underflow)
