"""Whether an answer is that of an acted mistake, and not only because its bound is wide."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..clauses.subject import Subject
from ..oracle.comparison import compare
from ..tolerance import model
from .battery import BatteryAnswer
from .mistaken_answer import MistakenAnswer


def _skipped(subject: Subject, observed: BatteryAnswer) -> Tensor:
    """Elements whose golden answer is not judged, broadcastable to it."""
    exact = subject.golden(observed.inputs)
    skipped = ~exact.representable
    return skipped | exact.empty_rows if subject.declaration.empty_rows == "any" else skipped


def margin(subject: Subject, observed: BatteryAnswer) -> float:
    """How far an answer is from the golden one, in bounds; infinite for one of another kind."""
    exact = subject.golden(observed.inputs)
    if exact.output.shape != observed.output.shape:
        return math.inf
    judged = (~_skipped(subject, observed)).expand(exact.output.shape)
    if not _same_nonfinite(observed.output, exact.output, judged):
        return math.inf
    judged = judged & torch.isfinite(exact.output)
    return compare(observed.output, exact.output, exact.bound, judged=judged).margin


def agrees(subject: Subject, acted: MistakenAnswer, observed: BatteryAnswer) -> bool:
    """Whether an answer lies within the bound of an acted mistake, and much closer than golden."""
    if acted.output.shape != observed.output.shape:
        return False
    judged = ~acted.unjudged(subject.declaration)
    judged = judged.expand(observed.output.shape) & _promised(subject, observed)
    if not _same_nonfinite(observed.output, acted.output, judged):
        return False
    judged = judged & torch.isfinite(acted.output)
    if not _much_closer(subject, acted, observed, judged):
        return False
    return compare(observed.output, acted.output, acted.bound, judged=judged).violation is None


def _promised(subject: Subject, observed: BatteryAnswer) -> Tensor:
    """Elements that the declaration promises something about; all, for an answer of odd shape."""
    exact = subject.golden(observed.inputs)
    if subject.declaration.empty_rows != "any" or exact.output.shape != observed.output.shape:
        return torch.ones_like(observed.output, dtype=torch.bool)
    return (~exact.empty_rows).expand(observed.output.shape)


def within(actual: Tensor, expected: Tensor, bound: Tensor) -> Tensor:
    """Which elements lie within a bound, or are the same NaN or infinity; bool of their shape."""
    same = (torch.isnan(actual) & torch.isnan(expected)) | (actual == expected)
    return same | ((actual - expected).abs() <= bound)


def _same_nonfinite(actual: Tensor, expected: Tensor, judged: Tensor) -> bool:
    """Whether NaN and both infinities stand in the same places."""
    same = torch.isnan(actual) == torch.isnan(expected)
    for infinite in (torch.isposinf, torch.isneginf):
        same = same & (infinite(actual) == infinite(expected))
    return bool((same | ~judged).all())


def _much_closer(
    subject: Subject, acted: MistakenAnswer, observed: BatteryAnswer, judged: Tensor
) -> bool:
    """Whether the mistake comes much closer than golden, or as close as rounding lets anybody."""
    exact = subject.golden(observed.inputs)
    if exact.output.shape != observed.output.shape:
        return True
    left = _size((observed.output - acted.output)[judged])
    declared = judged & torch.isfinite(exact.output) & torch.isfinite(exact.bound)
    distance = _size((observed.output - exact.output)[declared])
    rounding = _size(exact.bound[declared])
    if not acted.stepwise:  # the golden answer may be exact where that of the mistake is rounded
        rounding = max(rounding, _size(acted.bound[judged]))
    return left <= max(model.MUCH_CLOSER * distance, model.AS_CLOSE * rounding)


def closeness(
    subject: Subject, acted: MistakenAnswer, observed: BatteryAnswer
) -> tuple[float, float]:
    """What a mistake leaves of the squared errors of wrong elements, and all of them.

    Each error counts in units of the declared point's bound; an answer of another shape leaves
    nothing of one.
    """
    wrong = wrong_elements(subject, observed)
    if wrong is None:
        return 0.0, 1.0
    exact = subject.golden(observed.inputs)
    chosen = wrong & torch.isfinite(observed.output) & torch.isfinite(exact.output)
    unexpected = float((wrong & ~chosen).any())
    if acted.output.shape != observed.output.shape or not bool(chosen.any()):
        return 0.0, unexpected
    unit = exact.bound[chosen].clamp_min(model.LOST_WEIGHT)
    left = ((observed.output - acted.output)[chosen] / unit).square().sum()
    total = ((observed.output - exact.output)[chosen] / unit).square().sum()
    return float(left), float(total) + unexpected


def _size(errors: Tensor) -> float:
    """Their root mean square; infinite if one is no number."""
    if not errors.numel():
        return 0.0
    size = float(errors.square().mean().sqrt())
    return math.inf if math.isnan(size) else size


def wrong_elements(subject: Subject, observed: BatteryAnswer) -> Tensor | None:
    """Elements outside the bound, bool of the answer's shape; None for an answer of odd shape."""
    exact = subject.golden(observed.inputs)
    if exact.output.shape != observed.output.shape:
        return None
    same_nan = torch.isnan(observed.output) & torch.isnan(exact.output)
    far = ~((observed.output - exact.output).abs() <= exact.bound) & ~same_nan
    return far & ~_skipped(subject, observed)
