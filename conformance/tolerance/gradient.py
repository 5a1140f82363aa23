"""A gradient with its bounds, and the summary of its errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from . import model
from .contract import Contract
from .fit import Fit, fit_along, resolved, root_mean_square
from .spread import deviations_for


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaling:
    """The effect of a relative error of the logit scale on a gradient, and its allowed size.

    direct: the derivative of the gradient by the logarithm of the scale applied in the backward
        pass: the gradient itself for query and key, zero for the value.
    indirect: its derivative by the logarithm of the scale of the scores, through the weights.
    scale_rounding: the relative error of the scale allowed by the contract.
    common_rounding: a further relative error that all elements may have in common.
    noise: one deviation of the weighted sum of the gradient's errors due to roundings of
        intermediate values that move many elements together; takes weights of the gradient's shape.
    """

    direct: Tensor
    indirect: Tensor
    scale_rounding: float
    common_rounding: float
    noise: Callable[[Tensor], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientStatistics:
    """The error of a gradient with independent roundings.

    ``bound`` bounds all roundings together, and ``scale`` is the typical size of the error.
    ``scaling`` is None for the gradient of a bias, and without a statistical bound.
    """

    bound: Tensor
    scale: Tensor
    scaling: Scaling | None = None

    def viewed(self, view: Callable[[Tensor], Tensor]) -> GradientStatistics:
        """Return the statistics of selected or reordered elements, without ``scaling``."""
        return GradientStatistics(bound=view(self.bound), scale=view(self.scale))

    def with_scaling(self, scaling: Scaling) -> GradientStatistics:
        """Add the rounding of the scale itself, common to all elements.

        It is linear in the bound; the worst case has counted it already.
        """
        moved = (scaling.direct.abs() + scaling.indirect.abs()).mul_(scaling.scale_rounding)
        bound, scale = self.bound + moved, torch.hypot(self.scale, moved)
        return GradientStatistics(bound=bound, scale=scale, scaling=scaling)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """A golden gradient and the errors of a conforming one; float64, all of one shape.

    ``worst`` bounds any order and sign of roundings. ``derive`` computes the slower statistics on
    demand; without it the worst case replaces them.
    """

    value: Tensor
    worst: Tensor
    derive: Callable[[], GradientStatistics] | None = None

    @cached_property
    def statistics(self) -> GradientStatistics:
        """The errors by independent roundings."""
        if self.derive is None:
            return GradientStatistics(bound=self.worst, scale=self.worst)
        with torch.inference_mode():
            return self.derive()

    @property
    def bound(self) -> Tensor:
        """The bound of independent roundings."""
        return self.statistics.bound

    @property
    def scale(self) -> Tensor:
        """The typical size of the error."""
        return self.statistics.scale

    @property
    def scaling(self) -> Scaling | None:
        """The effect of a relative error of the logit scale, if known."""
        return self.statistics.scaling

    def allowed(self, *, generic: bool) -> Tensor:
        """Return the judging bound: for generic (independent) inputs the smaller of the two."""
        return torch.minimum(self.worst, self.bound) if generic else self.worst

    def of_tokens(self, kept: slice) -> Gradient:
        """The gradient of some of the tokens ``[..., L, D]``, without ``scaling``."""
        return self.viewed(lambda part: part[..., kept, :])

    def of_channels(self, kept: slice) -> Gradient:
        """The gradient of some of the channels, without ``scaling``."""
        return self.viewed(lambda part: part[..., kept])

    def viewed(self, view: Callable[[Tensor], Tensor]) -> Gradient:
        """Some elements, or all in another order, without ``scaling``."""
        return Gradient(
            value=view(self.value),
            worst=view(self.worst),
            derive=lambda: self.statistics.viewed(view),
        )


def add_gradients(gradients: list[Gradient], contract: Contract) -> Gradient:
    """Return the gradient of a tensor used several times: its gradients added and rounded.

    Each partial sum may be stored in the working dtype, in any order. The errors may be correlated,
    so the bounds add up. Raises ValueError for an empty list.
    """
    if not gradients:
        msg = "gradients is empty: there is nothing to add"
        raise ValueError(msg)
    sizes = sum((each.value.abs() for each in gradients[1:]), gradients[0].value.abs())
    additions = contract.sides * (len(gradients) - 1)
    rounding = additions * contract.unit_roundoff

    def total(parts: list[Tensor]) -> Tensor:
        grown = torch.stack(parts).sum(dim=0).mul_(1.0 + rounding)
        return grown.add_(sizes, alpha=rounding).add_(additions * contract.underflow)

    return Gradient(
        value=torch.stack([each.value for each in gradients]).sum(dim=0),
        worst=total([each.worst for each in gradients]),
        derive=lambda: GradientStatistics(
            bound=total([each.bound for each in gradients]),
            scale=total([each.scale for each in gradients]),
            scaling=_added([each.scaling for each in gradients]),
        ),
    )


def stack_gradients(gradients: list[Gradient], dim: int) -> Gradient:
    """Gradients of the parts of a tensor, side by side along a new axis."""

    def stacked(name: str) -> Tensor:
        return torch.stack([getattr(each, name) for each in gradients], dim=dim)

    return Gradient(
        value=stacked("value"),
        worst=stacked("worst"),
        derive=lambda: GradientStatistics(bound=stacked("bound"), scale=stacked("scale")),
    )


def _added(scalings: list[Scaling | None]) -> Scaling | None:
    present = [each for each in scalings if each is not None]
    if len(present) < len(scalings):
        return None
    return Scaling(
        direct=torch.stack([each.direct for each in present]).sum(dim=0),
        indirect=torch.stack([each.indirect for each in present]).sum(dim=0),
        scale_rounding=max(each.scale_rounding for each in present),
        common_rounding=max(each.common_rounding for each in present),
        noise=lambda weights: sum(each.noise(weights) for each in present),
    )


# An error of a query moves a whole row, one of a channel a whole column.
_SHARED = (-1, -2)


@dataclass(frozen=True, kw_only=True)
class GradientFit:
    """The common part of the errors of one gradient.

    rms: the root mean square of the errors over their typical sizes; the part left by the fits is
        at most 1 for a correct candidate (``unexplained``).
    counted: the number of errors.
    factor: the fit by a multiple of the gradient: a scale wrong in the backward pass alone.
    scale: the fit by the effect of a logit scale wrong in both passes. Both fits are None where
        nothing moves the gradient in this direction by more than its typical errors.
    """

    rms: float
    counted: int
    factor: Fit | None
    scale: Fit | None

    @property
    def fits(self) -> dict[str, Fit]:
        """The available fits, by name."""
        named = {"factor": self.factor, "scale": self.scale}
        return {name: each for name, each in named.items() if each is not None}

    @property
    def unexplained(self) -> float:
        """The root mean square of what the better fit leaves."""
        return min((each.unexplained for each in self.fits.values()), default=self.rms)

    @property
    def blamed(self) -> str:
        """Return the wrong scale, "factor" or "scale"; "" for neither.

        Either scale moves a gradient in similar directions: the better fit decides.
        """
        blamed = {name: each for name, each in self.fits.items() if each.blames_scale}
        return min(blamed, key=lambda name: blamed[name].unexplained, default="")


def gradient_fit(error: Tensor, gradient: Gradient) -> GradientFit | None:
    """Fit the errors (signed, of the gradient's shape) of one gradient.

    None for a gradient with few rows or channels, or without statistics. Elements whose golden
    gradient is zero do not count: nothing depends on their tokens.
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
        """Return the multiple of a direction that common errors of all elements resemble.

        The forward pass may round its scale in one form, the backward pass in another; both, and
        further common errors, may have equal signs.
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
