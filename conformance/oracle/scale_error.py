"""The logit scale that explains an answer: a mistake that can be given as a number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..problems.inputs import Inputs
from ..tolerance import model
from .oracle import Oracle


def fitted_scale_error(oracle: Oracle, inputs: Inputs, answer: Tensor) -> float | None:
    """The relative error of the scale under which the golden gives nearly this answer, or None.

    Gauss and Newton's iteration in one unknown, the slope a central difference of the golden. None
    when no scale explains nearly all of the error, or when so few elements speak that any would.
    """
    known = oracle.answer(inputs)
    judged = known.judged.expand(known.output.shape) & torch.isfinite(known.output)
    scale = known.core.scale
    if int(judged.sum()) < model.FEWEST_FITTED or scale == 0.0 or answer.shape != judged.shape:
        return None
    got, weight = answer.double()[judged], 1.0 / known.bound[judged].clamp_min(model.LOST_WEIGHT)

    def lacking(factor: float) -> Tensor:
        """How far the answer is from the golden one at a multiple of the scale, in bounds."""
        changed = oracle.output(inputs.replace(scale=scale * factor))
        return (got - changed[judged]) * weight

    return _newton(lacking)


def _newton(lacking: Callable[[float], Tensor]) -> float | None:
    """The factor, less one, at which the least is lacking; None if too much still is."""
    step = model.DIFFERENCE_STEP
    factor, first = 1.0, lacking(1.0)
    error = first
    for _ in range(model.NEWTON_STEPS):
        slope = (lacking(factor * (1.0 - step)) - lacking(factor * (1.0 + step))) / (2.0 * step)
        steepness = float(slope.square().sum())
        if steepness == 0.0:
            return None
        alpha = float((error * slope).sum()) / steepness
        factor *= 1.0 + max(-model.LARGEST_STEP, min(alpha, model.LARGEST_STEP))
        error = lacking(factor)
    left = float(error.square().sum() / first.square().sum())
    return factor - 1.0 if left <= model.LARGEST_UNEXPLAINED else None
