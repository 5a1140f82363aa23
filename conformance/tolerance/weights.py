"""How far softmax weights move when their exponents are off, and a weighted mean with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .keys import LiveKeys


@dataclass(frozen=True, kw_only=True)
class Perturbed:
    """Envelopes of the weights ``p_j exp(e_j)`` before they are divided by their sum.

    ``upper`` is their largest value and ``excess`` how much that is above ``p_j``, both
    ``[B, H, Lq, Lk]``; ``inverse`` is one over the smallest sum and ``change`` the mean square of
    the relative change under the weights, over the smallest sum squared, ``[B, H, Lq, 1]``. ``far``
    marks the rows ``[B, H, Lq]`` that change so much that the hull counts; None if there is none.
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
    seen: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """How far the weighted mean of the values moves: ``[B, H, Lq, Dv]``.

    With o = sum p v the moved mean is off by ``sum p (exp(e) - 1) (v - o) / sum p exp(e)``, since
    the p sum to 1. Its size is bounded in three ways, and the smallest counts: by the triangle
    inequality about the mean of the values, by Cauchy-Schwarz with the variance of the values under
    the weights, and by the hull: a weighted mean stays among the values, ``seen`` being the largest
    and smallest that each far row sees (None without far rows).
    """
    weights, value, output = attention.weights, attention.value, attention.output
    centre = live.mean(value)
    from_centre, shift = live.only_seen(value - centre), output - centre
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
    if perturbed.far is not None and seen is not None:
        high, low = seen
        chosen = output[perturbed.far]
        hull = torch.maximum(high - chosen, chosen - low).clamp_min_(0.0)
        moved[perturbed.far] = torch.fmin(moved[perturbed.far], hull)
    return moved


def envelope_mean(size: Tensor, perturbed: Perturbed, largest: Tensor | None) -> Tensor:
    """The largest weighted mean of magnitudes ``[B, H, Lk, Dv]``.

    A mean is at most the largest of them, which is given for the far rows, None if there are none.
    """
    mean = (perturbed.upper @ size).mul_(perturbed.inverse)
    if perturbed.far is not None and largest is not None:
        mean[perturbed.far] = torch.fmin(mean[perturbed.far], largest)
    return mean
