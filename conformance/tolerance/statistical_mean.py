"""How far the weighted mean of the values moves when its weights err independently."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract
from .keys import LiveKeys, extremes
from .spread import Variances
from .statistical_query import coherent_variance
from .statistical_scores import exponent_variance
from .weights import perturb


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """The variance of the weighted mean by its weights, and what else was found on the way."""

    variance: Tensor
    weights: Tensor
    from_centre: Tensor
    shift: Tensor
    saturated: float


def moved_mean(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    carried: Variances,
    deviations: float,
    cap: float,
) -> Moved:
    """Independent errors of the scores, the common one of exp, and the coherent one of the query.

    All are capped by the hull times ``cap``: a weighted mean stays among the values.
    """
    exponent, slope = exponent_variance(
        attention,
        live,
        contract,
        deviations,
        query_variance=carried.query,
        key_variance=carried.key,
    )
    perturbed = perturb(attention, exponent.sqrt_().mul_(deviations), live)
    centre = live.mean(attention.value)
    from_centre, shift = live.only_seen(attention.value - centre), attention.output - centre
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
    """How far weights that change independently, by ``changes`` squared, move the mean.

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
    """The standard deviation of the values under the weights: ``[B, H, Lq, Dv]``."""
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
    """Cap squared errors by the hull times ``cap``, in place; return the saturated fraction.

    The hull is at least the deviation, so it matters only in rows with an error above half of that.
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
