"""Two numbers that sum up many errors: their size against the expected one, and the scale error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import model
from .statistical import Statistics


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The common part of the errors of one check.

    rms: the root mean square of the errors over their typical sizes: at most 1 for a correct
        candidate.
    scale_error: the relative error of the logit scale that explains the errors best, in least
        squares.
    scale_allowed: its limit: the contract's allowance, and the noise of the fit.
    unexplained: the root mean square left by the fitted scale error.
    counted: the number of errors.
    """

    rms: float
    unexplained: float
    scale_error: float
    scale_allowed: float
    counted: int

    @property
    def blames_scale(self) -> bool:
        """Tell whether the scale is off: beyond its limit, and not because everything is wrong.

        Errors that are far too large in any direction have a part along the scale, too.
        """
        if abs(self.scale_error) <= self.scale_allowed:
            return False
        explained = 1.0 - (self.unexplained / self.rms) ** 2
        return self.unexplained <= 1.0 or explained >= model.EXPLAINED_BY_SCALE


def fit(error: Tensor, statistics: Statistics, judged: Tensor | None = None) -> Fit | None:
    """Fit the errors ``[B, H, Lq, Dv]`` or ``[B, Lq, Eo]`` of all rows to ``statistics``.

    ``judged`` is bool and broadcasts to ``error``: False leaves an element out. None where errors
    do not add up to a statistic: few rows, narrow heads, saturated weights, results that the scale
    does not move.
    """
    rows, scale = statistics.rows, statistics.scale
    wide = rows.numel() >= model.FEWEST_ROWS and scale.shape[-1] >= model.NARROWEST
    if not wide or statistics.saturated >= model.MOST_SATURATED:
        return None
    counts = scale > 0.0
    if judged is not None:
        counts &= judged.expand(error.shape).index_select(-2, rows)
    divisor = scale.where(counts, torch.inf)
    relative = error.double().index_select(-2, rows).where(counts, 0.0).div_(divisor)
    # What is not counted may be NaN: a row without keys.
    slope, result = (
        (part / divisor).where(counts, 0.0) for part in (statistics.slope, statistics.result)
    )
    slope = resolved(slope)
    return fit_along(
        relative,
        slope,
        probe=apart_from(result, slope),
        rounding=statistics.scale_rounding,
        deviations=model.FIT_DEVIATIONS * statistics.deviations,
        counted=int(counts.sum()),
    )


def sharp_fit(error: Tensor, statistics: Statistics, judged: Tensor) -> tuple[Fit, float] | None:
    """Fit errors in units of their deviations; returns the fit and the limit of the rest.

    The mean square of evenly distributed roundings is 1 then, with noise. Errors of one row may be
    dependent (a rounded weight moves all its channels), errors of two rows are not: the number of
    independent errors is the number of rows.
    """
    fitted = fit(error, dataclasses.replace(statistics, scale=statistics.deviation), judged)
    if fitted is None:
        return None
    shape = (*error.shape[:-1], 1)
    rows = int(judged.expand(shape).index_select(-2, statistics.rows).sum())
    noise = statistics.deviations * model.UNIFORM_SQUARES / math.sqrt(max(rows, 1))
    return fitted, math.sqrt(1.0 + noise)


def fit_along(
    relative: Tensor,
    direction: Tensor,
    *,
    probe: Tensor | None = None,
    rounding: float,
    deviations: float,
    counted: int,
    shared: Sequence[int] = (-1,),
    coherent: float = 0.0,
) -> Fit | None:
    """Fit errors in units of their typical size by a multiple of a direction in the same units.

    ``rounding`` is the multiple allowed by the contract, ``deviations`` its allowed noise,
    ``counted`` the number of errors not left out as zeros. Along each of the dimensions ``shared``
    errors may be dependent; ``coherent`` is one deviation of ``<relative, direction>`` by further
    known dependence. ``probe`` is the part of the direction used for fitting the multiple, by
    default all of it. None where the direction is zero.
    """
    probe = direction if probe is None else probe
    length = float(torch.linalg.vector_norm(probe))
    if length == 0.0 or not math.isfinite(length):
        return None
    scale_error = float((relative * probe).sum()) / length**2
    left = torch.add(relative, direction, alpha=-scale_error)
    noise = max(length, _residual_noise(left, probe, shared), coherent) / length**2
    rms = root_mean_square(relative, counted)
    return Fit(
        rms=rms,
        # With a probe that is a small part of its direction, the multiple is mostly noise.
        unexplained=min(root_mean_square(left, counted), rms),
        scale_error=scale_error,
        scale_allowed=rounding + deviations * noise,
        counted=counted,
    )


def apart_from(other: Tensor, direction: Tensor) -> Tensor:
    """Return the part of a direction at right angles to another.

    Errors in proportion to the results (sums that truncate) must not pass for a wrong scale.
    """
    shared = other.where(direction != 0.0, 0.0)
    length = float(shared.square().sum())
    if length == 0.0 or not math.isfinite(length):
        return direction
    return torch.add(direction, shared, alpha=-float((direction * shared).sum()) / length)


def root_mean_square(relative: Tensor, counted: int) -> float:
    """Return the root mean square of ``counted`` errors; errors that do not count are zero."""
    return float(torch.linalg.vector_norm(relative)) / math.sqrt(counted)


def resolved(direction: Tensor) -> Tensor:
    """Zero a direction where the scale hardly moves a result compared with its error.

    Rounding is independent of a signal that spans many roundings. A signal that spans none is
    rounded away: an error of minus the signal that looks like a scale that is too small.
    """
    return direction.where(direction.abs() >= model.RESOLVED, 0.0)


def _residual_noise(left: Tensor, direction: Tensor, shared: Sequence[int]) -> float:
    """Return one deviation of ``<errors, direction>`` by errors the fit leaves unexplained.

    Independent errors of unit size make it the length of the direction. Those of one row need not
    be independent: a rounded weight moves all its channels. Rows are, so their sums show it (the
    standard error for clusters of Liang and Zeger, "Longitudinal data analysis using generalized
    linear models", 1986). Where rows and columns may both be dependent, both count.
    """
    parts = left * direction
    return math.hypot(*(float(torch.linalg.vector_norm(parts.sum(dim=dim))) for dim in shared))
