"""The sharpest measure of an answer: exact where possible, within every bound that holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._golden import golden
from ..problems.inputs import Inputs
from ..tolerance import Contract, model
from ..tolerance.fit import Fit, fit, sharp_fit
from ..tolerance.model import MOST_SATURATED
from ..tolerance.statistical import (
    Statistics,
    core_statistics,
    has_statistical_bound,
    layer_statistics,
)
from . import double_double
from .oracle import Golden, Oracle


def fitted_scale_error(oracle: Oracle, inputs: Inputs, answer: Tensor) -> float | None:
    """The relative error of the scale under which the golden gives nearly this answer, or None.

    Gauss and Newton's iteration in one unknown, the slope a central difference of the golden. None
    when no scale explains nearly all of the error, or when the judged elements are too few to
    exclude any scale.
    """
    expected = oracle.answer(inputs)
    judged = expected.judged.expand(expected.output.shape) & torch.isfinite(expected.output)
    scale = expected.core.scale
    if int(judged.sum()) < model.FEWEST_FITTED or scale == 0.0 or answer.shape != judged.shape:
        return None
    got, weight = (
        answer.double()[judged],
        1.0 / expected.bound[judged].clamp_min(model.LOST_WEIGHT),
    )

    def lacking(factor: float) -> Tensor:
        """How far the answer is from the golden one at a multiple of the scale, in bounds."""
        changed = oracle.output(inputs.replace(scale=scale * factor))
        return (got - changed[judged]) * weight

    return _newton(lacking, (got - expected.output[judged]) * weight)


def _newton(lacking: Callable[[float], Tensor], first: Tensor) -> float | None:
    """The factor, less one, of the smallest error; None if the error is still too large.

    ``first`` is the error at a factor of one.
    """
    step = model.DIFFERENCE_STEP
    factor, error, left = 1.0, first, 1.0
    for steps in range(model.MOST_NEWTON_STEPS):
        slope = (lacking(factor * (1.0 - step)) - lacking(factor * (1.0 + step))) / (2.0 * step)
        steepness = float(slope.square().sum())
        if steepness == 0.0:
            return None
        alpha = float((error * slope).sum()) / steepness
        factor *= 1.0 + max(-model.LARGEST_STEP, min(alpha, model.LARGEST_STEP))
        error = lacking(factor)
        left = float(error.square().sum() / first.square().sum())
        explained = left <= model.LARGEST_UNEXPLAINED
        settled = abs(alpha) <= step or not explained
        if settled and steps + 1 >= model.NEWTON_STEPS:
            break
        if explained and abs(alpha) <= model.SETTLED_STEP:  # further ones change no digit
            break
    return factor - 1.0 if left <= model.LARGEST_UNEXPLAINED else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Yardstick:
    """The measure of a candidate's answer to some inputs, all float64.

    output, remainder
        The sum of both is the exact answer; ``remainder`` is None if ``output`` is exact enough:
        the golden in float64 is, for tensors of coarser dtypes.
    bound
        The worst-case bound, and on independent inputs the statistical bound if smaller.
    judged
        The judged rows, broadcastable to ``output``.
    statistics
        The typical error of every element, None if errors cannot be taken for independent.
    """

    output: Tensor
    remainder: Tensor | None
    bound: Tensor
    judged: Tensor
    statistics: Statistics | None

    def error(self, answer: Tensor) -> Tensor:
        """The signed difference between an answer and the exact answer."""
        error = answer.double() - self.output
        return error if self.remainder is None else error - self.remainder

    def fit(self, answer: Tensor) -> Fit | None:
        """The typical error and the scale that explain an answer best; None without statistics."""
        if self.statistics is None or not self._judges_numbers(answer):
            return None
        return fit(self.error(answer), self.statistics, self.judged)

    def sharp_fit(self, answer: Tensor) -> tuple[Fit, float] | None:
        """The fit in units of the deviations of roundings, and the error that the fit may leave."""
        if self.statistics is None or not self._judges_numbers(answer):
            return None
        return sharp_fit(self.error(answer), self.statistics, self.judged)

    def _judges_numbers(self, answer: Tensor) -> bool:
        """Whether an answer is finite in all judged rows; others may hold a declared NaN."""
        return bool((torch.isfinite(answer) | ~self.judged).all())


def yardstick(oracle: Oracle, inputs: Inputs) -> Yardstick:
    """The yardstick for some inputs at the declared point."""
    answer = oracle.answer(inputs)
    contract = oracle.contract(answer.core.scale)
    exact = _exactly(answer) if contract.sides > 1 else None
    output, remainder = (answer.output, None) if exact is None else exact
    bound = answer.bound
    if exact is not None:
        # A single computation is compared with the truth, not with another that errs as well; but
        # where that would overflow, the golden stands in.
        stands_in = (exact[0] == answer.output) & (exact[1] == 0.0)
        bound = torch.where(stands_in, bound, bound / contract.sides)
        contract = dataclasses.replace(contract, sides=1)
    statistics = None
    if contract.sides == 1 and inputs.generic and not contract.activation_steps:
        statistics = _statistics(answer, contract)
    if statistics is not None and statistics.saturated < MOST_SATURATED:
        bound = _sharper(bound, statistics)
    return Yardstick(
        output=output,
        remainder=remainder,
        bound=bound,
        judged=answer.judged,
        statistics=statistics,
    )


def _exactly(answer: Golden) -> tuple[Tensor, Tensor] | None:
    """The answer in double-double arithmetic, None at unsupported points."""
    if not double_double.supports(answer.core.semantics) or answer.core.learned:
        return None
    if isinstance(answer.evaluation, golden.Attention):
        return double_double.core_output(answer.evaluation)
    return double_double.layer_output(answer.evaluation)


def _statistics(answer: Golden, contract: Contract) -> Statistics | None:
    if not has_statistical_bound(answer.core.semantics) or answer.output.numel() == 0:
        return None
    if isinstance(answer.evaluation, golden.Attention):
        return core_statistics(answer.evaluation, contract)
    return layer_statistics(answer.evaluation, contract)


def _sharper(bound: Tensor, statistics: Statistics) -> Tensor:
    """The smaller of both bounds, in the rows with a statistical bound."""
    sharper = bound.clone()
    rows = statistics.rows
    sharper[..., rows, :] = torch.minimum(bound[..., rows, :], statistics.bound)
    return sharper
