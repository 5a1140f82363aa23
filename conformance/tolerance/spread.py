"""An error as a statistical model knows it: random parts, a last rounding, and certain parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from . import model


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """The error of some results, float64 tensors of their shape.

    variance
        Sum of the squared sizes of independent errors.
    last
        The largest error of the last rounding, which stays one uniform error until it is mixed
        with others in a further product.
    linear
        The sum of errors that need not be independent and so add up in full.
    slope
        How the result changes with the logarithm of the logit scale.
    """

    variance: Tensor
    last: Tensor
    linear: Tensor
    slope: Tensor

    def bound(self, deviations: float) -> Tensor:
        """What an error exceeds with the probability that belongs to ``deviations``, or less."""
        return self.variance.sqrt().mul_(deviations).add_(self.last).add_(self.linear)

    def scale(self) -> Tensor:
        """The typical size of the error."""
        squares = torch.addcmul(self.variance, self.last, self.last)
        return squares.addcmul_(self.linear, self.linear).sqrt_()

    def deviation(self) -> Tensor:
        """The same where every rounding falls evenly within its bounds: a third of its square."""
        squares = torch.addcmul(self.variance, self.last, self.last).div_(model.UNIFORM)
        return squares.addcmul_(self.linear, self.linear).sqrt_()


@dataclass(frozen=True, kw_only=True, eq=False)
class Variances:
    """What query, key and value heads carry as errors; None where they are exact."""

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None


def deviations_for(count: int) -> float:
    """How many deviations none of ``count`` subgaussian errors exceeds, but for one check in 1e9.

    Each exceeds x deviations with a probability of at most ``2 exp(-x^2 / 2)``; the union of all is
    to stay below ``model.FALSE_ALARM_PROBABILITY``.
    """
    return math.sqrt(2.0 * math.log(2.0 * max(count, 1) / model.FALSE_ALARM_PROBABILITY))
