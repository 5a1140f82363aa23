"""The statistical error of attention proper: from heads to heads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from . import model
from .attention_bound import without_empty_rows
from .contract import Contract
from .positions import distance_size
from .prepared import Prepared, prepared_variances
from .softmax_and_sum import gated_value, log_sum_exp_error, mean_bound, merge_error, perturb
from .spread import EXACT, Carried, ErrorSpread
from .statistical_scores import coherent_variance, exponent_variance, scale_slope
from .visible_keys import LiveKeys, extremes, live_keys, with_sink


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """The variance of the weighted mean by its weights, with the intermediate values."""

    variance: Tensor
    weights: Tensor
    from_centre: Tensor
    shift: Tensor
    saturated: float


def moved_mean(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    carried: Carried,
    deviations: float,
    cap: float,
) -> Moved:
    """Return the error by independent score errors, exp's common one, the query's coherent one.

    All are capped by the hull times ``cap``: a weighted mean stays among the values.
    """
    exponent, slope = exponent_variance(attention, live, contract, deviations, carried)
    perturbed = perturb(attention, exponent.sqrt_().mul_(deviations), live)
    centre = live.mean(attention.value)
    from_centre, shift = live.only_attended(attention.value - centre), attention.output - centre
    changes = (perturbed.excess * perturbed.inverse).clamp_max_(cap).square_()
    raw = _raw_error(changes, from_centre, shift, live)
    deviation = _deviation(attention, from_centre, shift)
    # An error that exp makes for all keys alike adds linearly.
    raw.add_(deviation, alpha=contract.exp_error * contract.accumulator_roundoff)
    error = raw.square()
    coherent = coherent_variance(
        attention, live, contract, slope, carried.query, (from_centre, shift)
    )
    if coherent is not None:
        error.add_(coherent, alpha=deviations**2)
    saturated = _cap_by_hull(error, raw, deviation, attention, live, cap)
    return Moved(
        variance=error.div_(deviations**2),
        weights=(perturbed.upper * perturbed.inverse).clamp_max_(1.0).square_(),
        from_centre=from_centre,
        shift=shift,
        saturated=saturated,
    )


def _raw_error(changes: Tensor, from_centre: Tensor, shift: Tensor, live: LiveKeys) -> Tensor:
    """Return the mean's movement by weights that change independently, by ``changes`` squared.

    ``sqrt(sum_j d_j^2 (v_j - o)^2)``, with values and outputs from a common centre.
    """
    both = changes @ torch.cat((from_centre.square(), from_centre), dim=-1)
    second, first = both.split(shift.shape[-1], dim=-1)
    total = changes.sum(dim=-1, keepdim=True)
    spread = torch.addcmul(second, shift, shift * total - 2.0 * first).clamp_min_(0.0)
    # The difference cancels: what float64 may have lost is added back.
    lost = (live.key_length + 8) * model.UNIT_ROUNDOFF["float64"]
    return spread.add_(second, alpha=lost).sqrt_()


def _deviation(attention: golden.Attention, from_centre: Tensor, shift: Tensor) -> Tensor:
    """Return the standard deviation of the values under the weights: ``[B, H, Lq, Dv]``."""
    average = attention.weights @ from_centre.square()
    return torch.addcmul(average, shift, shift, value=-1.0).clamp_min_(0.0).sqrt_()


def _cap_by_hull(
    error: Tensor,
    raw: Tensor,
    deviation: Tensor,
    attention: golden.Attention,
    live: LiveKeys,
    cap: float,
) -> float:
    """Cap squared errors by the hull times ``cap``, in place; returns the saturated fraction.

    The hull is at least the deviation, so only rows with an error above half of it matter.
    """
    near = deviation.mul_(model.SATURATION).square_()
    far = (error > near).any(dim=-1)
    if not bool(far.any()):
        return 0.0
    high, low = extremes(attention.value, live, far)
    chosen = attention.output[far]
    hull = torch.maximum(high - chosen, chosen - low).clamp_min_(0.0)
    error[far] = torch.fmin(error[far], (hull * cap).square_())
    if live.key_length == 1:
        return 0.0
    saturated = raw[far] > model.SATURATION * hull
    if live.table is not None:  # the only key of a row has weight 1, whatever its error
        saturated &= (live.table.sum(dim=-1) > 1)[far].unsqueeze(-1)
    return float(saturated.sum()) / raw.numel()


def core_spread(
    attention: golden.Attention,
    contract: Contract,
    deviations: float,
    carried: Carried = EXACT,
    *,
    mixed: bool = False,
) -> tuple[ErrorSpread, float]:
    """Return the error of ``attention.output`` and the saturated fraction.

    ``attention`` holds the judged rows only. A row without a key counts as exact, or with its worst
    case if its rule is a mean. Derived in docs/tolerance.md.

    No weight changes by more than 1 and no mean leaves the hull of its values: the bound for the
    output itself. If outputs are ``mixed`` by a projection afterwards, it is a deviation: an error
    bounded by b without further knowledge is subgaussian with deviation b (Hoeffding's lemma), not
    with a fraction of it.
    """
    prepared = prepared_variances(attention, contract, carried)
    carried = prepared.carried
    shared = _shared_error(attention, contract, prepared)
    if attention.sinks is not None:
        attention = with_sink(attention)
        carried = carried.with_exact_key()
        shared = None if shared is None else pad(shared, (0, 1))
    live = live_keys(attention)
    clean = without_empty_rows(attention, live)
    carried = carried.only_attended(live)
    cap = deviations if mixed else 1.0
    moved = moved_mean(clean, live, contract, carried, deviations, cap)
    variance = moved.variance.add_(_sum_variance(clean, moved.weights, live, contract, carried))
    size = clean.value.abs()
    linear = _linear(clean, size, live, contract) + gated_value(attention, contract)
    if shared is not None:
        linear += _moved_together(clean, live, shared)
    slope = scale_slope(clean, moved.from_centre, moved.shift)
    if live.empty is not None and attention.semantics.empty_rows.startswith("mean"):
        linear += _empty_row_error(attention, live.empty, contract, deviations, carried)
    spread = ErrorSpread(
        variance=variance, last=_last_rounding(clean, size, contract), linear=linear, slope=slope
    )
    return spread, moved.saturated


def _shared_error(
    attention: golden.Attention, contract: Contract, prepared: Prepared
) -> Tensor | None:
    """Return the non-random error of scores: tables of positions and of slopes."""
    error = prepared.score_error(attention)
    if attention.alibi is None:
        return error
    stored = model.DISTANCE_STORES * contract.unit_roundoff * distance_size(attention)
    return stored if error is None else error + stored


def _moved_together(attention: golden.Attention, live: LiveKeys, error: Tensor) -> Tensor:
    """Return the first-order effect on the output of score errors that may be dependent."""
    moved = attention.weights * live.only(error.expand(attention.weights.shape).clone())
    centre = live.mean(attention.value)
    from_centre = live.only_attended((attention.value - centre).abs())
    shift = (attention.output - centre).abs()
    return moved @ from_centre + moved.sum(dim=-1, keepdim=True) * shift


def _sum_variance(
    attention: golden.Attention,
    weights: Tensor,
    live: LiveKeys,
    contract: Contract,
    carried: Carried,
) -> Tensor:
    """Return the variance of weighted sum, division, and the errors carried by the values.

    ``weights`` are the squares of the largest weights, ``[B, H, Lq, Lk]``.
    """
    unit, length = contract.accumulator_roundoff, live.key_length
    blocks = math.ceil(length / contract.key_block)
    terms = contract.weight_roundoff**2 + 2.0 * contract.operand_roundoff**2
    terms += (model.WALK * length + blocks + model.NUMERATOR_ROUNDINGS) * unit**2
    squares = attention.value.square()
    ratio = (model.NORMALISED_DRIFT * length + blocks + model.RATIO_ROUNDINGS) * unit**2
    terms += model.PARTIAL_STORES * model.WALK * contract.score_roundoff**2
    partners = squares * terms
    if carried.value is not None:
        partners += carried.value
    variance = weights @ partners
    variance.addcmul_(attention.output, attention.output, value=ratio)
    if contract.weight_underflow:
        variance += weights.clamp_max(contract.weight_underflow**2) @ squares
    if contract.score_roundoff:
        variance += model.PARTIAL_STORES * contract.underflow**2
    return variance


def _linear(
    attention: golden.Attention, size: Tensor, live: LiveKeys, contract: Contract
) -> Tensor:
    """Return the error by absorbed weights, rounded log-sum-exp and share: one sign in a row."""
    weights = attention.weights
    tail = weights.where(weights < model.ABSORBED * contract.accumulator_roundoff, 0.0)
    magnitudes = weights * log_sum_exp_error(attention, live, contract)
    linear = magnitudes.add_(tail) @ size
    linear.addcmul_(tail.sum(dim=-1, keepdim=True), attention.output.abs())
    dominated = weights.amax(dim=-1, keepdim=True) > model.DOMINANT_WEIGHT
    return linear.add_(merge_error(attention, live, contract) * dominated)


def _last_rounding(attention: golden.Attention, size: Tensor, contract: Contract) -> Tensor:
    last = attention.output.abs().mul_(contract.unit_roundoff).add_(contract.underflow)
    flushed = size.sum(dim=-2, keepdim=True).add_(size.shape[-2])
    return last.add_(flushed, alpha=contract.accumulator_underflow)


def _empty_row_error(
    attention: golden.Attention,
    empty: Tensor,
    contract: Contract,
    deviations: float,
    carried: Carried,
) -> Tensor:
    """Return the worst case of means in empty rows: ``[B, H, Lq, Dv]``, 0 elsewhere."""
    value_error = None if carried.value is None else carried.value.sqrt().mul_(deviations)
    return torch.where(empty, mean_bound(attention, empty, contract, value_error), 0.0)
