"""Errors in a statistical model, and the rounding of the scale that all scores share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import model
from .contract import Contract
from .visible_keys import LiveKeys, more_keys


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorSpread:
    """The error of results, float64 tensors of their shape.

    variance: the sum of the squared sizes of independent errors.
    last: the largest error of the last rounding, uniform until mixed with others in a further
        product.
    linear: the sum of errors that may be dependent and add up in full.
    slope: the derivative of the result by the logarithm of the logit scale.
    """

    variance: Tensor
    last: Tensor
    linear: Tensor
    slope: Tensor

    def bound(self, deviations: float) -> Tensor:
        """Return a limit exceeded at most with the probability belonging to ``deviations``."""
        return self.variance.sqrt().mul_(deviations).add_(self.last).add_(self.linear)

    def scale(self) -> Tensor:
        """The typical size of the error."""
        squares = torch.addcmul(self.variance, self.last, self.last)
        return squares.addcmul_(self.linear, self.linear).sqrt_()

    def deviation(self) -> Tensor:
        """The typical error where roundings fall evenly within bounds: a third of their square."""
        squares = torch.addcmul(self.variance, self.last, self.last).div_(model.UNIFORM)
        return squares.addcmul_(self.linear, self.linear).sqrt_()


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """The errors, or variances, of the heads entering a bound; None where heads are exact.

    ``query [B, H, Lq, D]``, ``key [B, H, Lk, D]`` and ``value [B, H, Lk, Dv]`` have one head for
    each query head. ``output_gradient [B, H, Lq, Dv]`` enters the backward pass.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    output_gradient: Tensor | None = None

    def only_attended(self, live: LiveKeys) -> Carried:
        """Return the errors without those of unattended keys."""
        return self._of_keys(live.only_attended)

    def with_exact_key(self) -> Carried:
        """Return the errors with one more key, the last and exact."""
        return self._of_keys(more_keys)

    def _of_keys(self, change: Callable[[Tensor], Tensor]) -> Carried:
        key, value = (None if each is None else change(each) for each in (self.key, self.value))
        return replace(self, key=key, value=value)


EXACT = Carried()


def deviations_for(count: int) -> float:
    """How many deviations none of ``count`` subgaussian errors exceeds, but for one check in 1e9.

    Each exceeds x deviations with a probability of at most ``2 exp(-x^2 / 2)``; the union of all is
    to stay below ``model.FALSE_ALARM_PROBABILITY``.
    """
    return math.sqrt(2.0 * math.log(2.0 * max(count, 1) / model.FALSE_ALARM_PROBABILITY))


def scale_rounding(scale: float, contract: Contract) -> float:
    """Return the relative error of a scale stored in the working dtype in a usual form.

    The forms: the number, its inverse as a divisor, the inverse of this inverse, or a root applied
    to query and key, which counts twice. All are exact for a power of four. The error is that of
    the very number: mostly far below its bound, the unit roundoff. The accumulator's roundoff is
    added for the arithmetic with it.
    """
    size = abs(scale)
    if size == 0.0 or not math.isfinite(1.0 / size):
        return contract.accumulator_roundoff
    unit = contract.unit_roundoff
    root = math.sqrt(size)
    forms = (
        rounded(size, unit),
        1.0 / rounded(1.0 / size, unit),
        rounded(1.0 / rounded(1.0 / size, unit), unit),
        rounded(root, unit) ** 2,
        rounded(1.0 / root, unit) ** -2,
    )
    return max(abs(form / size - 1.0) for form in forms) + contract.accumulator_roundoff


def rounded(number: float, unit_roundoff: float) -> float:
    """A positive number to nearest even in a binary format without limits of its exponent.

    A roundoff of zero stands for exact arithmetic.
    """
    if unit_roundoff == 0.0:
        return number
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa / unit_roundoff) * unit_roundoff, exponent)
