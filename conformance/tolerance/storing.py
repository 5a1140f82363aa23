"""The last step of every gradient: it is stored in the working dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .contract import Contract
from .gradient import Gradient


@dataclass(frozen=True, kw_only=True, eq=False)
class Errors:
    """A golden gradient, the worst error so far and the variance of independent errors.

    ``underflow`` is an absolute error that earlier stores may have made.
    """

    value: Tensor
    worst: Tensor
    variance: Tensor
    underflow: float = 0.0

    def rounded(self, roundoff: float) -> Errors:
        """One more rounding in quadrature; the worst case has counted it already."""
        if roundoff == 0.0:
            return self
        return replace(self, variance=self.variance + (roundoff * self.value).square())


def stored(errors: Errors, contract: Contract, deviations: float) -> Gradient:
    """The gradient with its bounds behind the last rounding, which is one uniform error."""
    unit, size = contract.unit_roundoff, errors.value.abs()
    lost = contract.underflow + errors.underflow
    last = unit * size + lost
    variance = errors.variance.clamp_min(0.0)
    return Gradient(
        value=errors.value,
        worst=contract.sides * (errors.worst * (1.0 + unit) + last),
        bound=contract.sides * (deviations * variance.sqrt() * (1.0 + unit) + last),
        scale=contract.sides * torch.sqrt(variance + last.square()),
    )
