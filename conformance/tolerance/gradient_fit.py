"""Numbers that sum up the errors of a gradient: their size, and two ways to get a scale wrong.

For generic inputs only: independent tokens, and an output gradient independent in each element.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import model
from .fit import Fit, fit_along, resolved, root_mean_square
from .gradient import Gradient, Scaling
from .spread import deviations_for

# An error of a query moves a whole row, one of a channel a whole column.
_SHARED = (-1, -2)


@dataclass(frozen=True, kw_only=True)
class GradientFit:
    """What the errors of one gradient have in common.

    rms
        The root mean square of the errors over their typical sizes. What the fits leave of it is at
        most 1 for a correct candidate (``unexplained``).
    counted
        How many errors went in.
    factor
        The fit by a multiple of the gradient: a scale that is wrong in the backward pass alone.
    scale
        The fit by what a logit scale does that is wrong in both passes. Either is None where
        nothing moves the gradient that way by more than its typical errors.
    """

    rms: float
    counted: int
    factor: Fit | None
    scale: Fit | None

    @property
    def fits(self) -> dict[str, Fit]:
        """The fits there are, by name."""
        named = {"factor": self.factor, "scale": self.scale}
        return {name: each for name, each in named.items() if each is not None}

    @property
    def unexplained(self) -> float:
        """The root mean square of what the better fit leaves."""
        return min((each.unexplained for each in self.fits.values()), default=self.rms)

    @property
    def blamed(self) -> str:
        """Which of the two scales is off, "factor" or "scale"; "" for neither.

        A gradient that one of them moves is mostly moved by the other, too: the better fit says
        which it is.
        """
        blamed = {name: each for name, each in self.fits.items() if each.blames_scale}
        return min(blamed, key=lambda name: blamed[name].unexplained, default="")


def gradient_fit(error: Tensor, gradient: Gradient) -> GradientFit | None:
    """Sum up the errors (signed, of the gradient's shape) of one gradient.

    None for a gradient with few rows or channels, or without statistics. Elements whose golden
    gradient is zero do not count: those of tokens that nothing depends on.
    """
    value, scaling = gradient.value, gradient.scaling
    if scaling is None or value.dim() < len(_SHARED):
        return None
    counts = (gradient.scale > 0.0) & (value != 0.0)
    counted = int(counts.sum())
    if value.shape[-2] < model.FEWEST_ROWS or value.shape[-1] < model.NARROWEST or not counted:
        return None
    divisor = gradient.scale.where(counts, torch.inf)
    relative = error.double().where(counts, 0.0) / divisor
    directions = {"factor": value, "scale": scaling.direct + scaling.indirect}
    fits = {
        name: _fit(relative, resolved(each / divisor), _Units(gradient, scaling, divisor), counted)
        for name, each in directions.items()
    }
    rms = root_mean_square(relative, counted)
    return GradientFit(rms=rms, counted=counted, factor=fits["factor"], scale=fits["scale"])


@dataclass(frozen=True)
class _Units:
    """A gradient and its slopes in units of the typical errors."""

    gradient: Gradient
    scaling: Scaling
    divisor: Tensor

    def allowed(self, direction: Tensor) -> float:
        """The multiple of a direction by which errors that all elements share look alike.

        The forward pass may round its scale in one form, the backward pass in another; both, and
        what else is common, may have one sign.
        """
        parts = (
            (self.scaling.direct, self.scaling.scale_rounding),
            (self.scaling.indirect, self.scaling.scale_rounding),
            (self.gradient.value, self.scaling.common_rounding),
        )
        squared = float(direction.square().sum())
        if squared == 0.0:
            return 0.0
        along = (
            rounding * abs(float((part / self.divisor * direction).sum()))
            for part, rounding in parts
        )
        return sum(along) / squared


def _fit(relative: Tensor, direction: Tensor, units: _Units, counted: int) -> Fit | None:
    return fit_along(
        relative,
        direction,
        rounding=units.allowed(direction),
        deviations=deviations_for(counted),
        counted=counted,
        shared=_SHARED,
        coherent=units.scaling.noise(direction / units.divisor),
    )
