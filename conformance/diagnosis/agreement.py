"""Whether an answer is that of an acted mistake, and not only because its bound is wide."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..clauses.subject import Subject
from ..oracle.comparison import compare
from ..tolerance import model
from .acting import Acted
from .battery import Seen


def margin(subject: Subject, seen: Seen) -> float:
    """How far an answer is from the golden one, in bounds; infinite for one of another kind."""
    known = subject.golden(seen.inputs)
    if known.output.shape != seen.output.shape:
        return math.inf
    skipped = ~known.representable
    if subject.declaration.empty_rows == "any":
        skipped = skipped | known.empty_rows
    judged = (~skipped).expand(known.output.shape)
    if not _same_nonfinite(seen.output, known.output, judged):
        return math.inf
    judged = judged & torch.isfinite(known.output)
    return compare(seen.output, known.output, known.bound, judged=judged).margin


def agrees(subject: Subject, acted: Acted, seen: Seen) -> bool:
    """Whether an answer lies within the bound of an acted mistake, and much closer than golden."""
    if acted.output.shape != seen.output.shape:
        return False
    judged = ~acted.unjudged(subject.declaration)
    judged = judged.expand(seen.output.shape) & _promised(subject, seen)
    if not _same_nonfinite(seen.output, acted.output, judged):
        return False
    judged = judged & torch.isfinite(acted.output)
    if not _much_closer(subject, acted, seen, judged):
        return False
    return compare(seen.output, acted.output, acted.bound, judged=judged).violation is None


def _promised(subject: Subject, seen: Seen) -> Tensor:
    """Elements that the declaration promises something about; all, for an answer of odd shape."""
    known = subject.golden(seen.inputs)
    if subject.declaration.empty_rows != "any" or known.output.shape != seen.output.shape:
        return torch.ones_like(seen.output, dtype=torch.bool)
    return (~known.empty_rows).expand(seen.output.shape)


def _same_nonfinite(got: Tensor, expected: Tensor, judged: Tensor) -> bool:
    """Whether NaN and both infinities stand in the same places."""
    same = torch.isnan(got) == torch.isnan(expected)
    for infinite in (torch.isposinf, torch.isneginf):
        same = same & (infinite(got) == infinite(expected))
    return bool((same | ~judged).all())


def _much_closer(subject: Subject, acted: Acted, seen: Seen, judged: Tensor) -> bool:
    """Whether the mistake comes much closer than golden, or as close as rounding lets anybody."""
    left = _size((seen.output - acted.output)[judged])
    known = subject.golden(seen.inputs)
    if known.output.shape != seen.output.shape:
        return True
    declared = judged & torch.isfinite(known.output) & torch.isfinite(known.bound)
    apart = _size((seen.output - known.output)[declared])
    rounding = _size(known.bound[declared])
    return left <= max(model.MUCH_CLOSER * apart, model.AS_CLOSE * rounding)


def closeness(subject: Subject, acted: Acted, seen: Seen) -> tuple[float, float]:
    """What a mistake leaves of the squared errors of wrong elements, and all of them.

    Each error counts in units of the declared point's bound; an answer of another shape leaves
    nothing of one.
    """
    wrong = wrong_elements(subject, seen)
    if wrong is None:
        return 0.0, 1.0
    known = subject.golden(seen.inputs)
    chosen = wrong & torch.isfinite(seen.output) & torch.isfinite(known.output)
    unexpected = float((wrong & ~chosen).any())
    if acted.output.shape != seen.output.shape or not bool(chosen.any()):
        return 0.0, unexpected
    unit = known.bound[chosen].clamp_min(model.LOST_WEIGHT)
    left = ((seen.output - acted.output)[chosen] / unit).square().sum()
    apart = ((seen.output - known.output)[chosen] / unit).square().sum()
    return float(left), float(apart) + unexpected


def _size(errors: Tensor) -> float:
    """Their root mean square; infinite if one is no number."""
    if not errors.numel():
        return 0.0
    size = float(errors.square().mean().sqrt())
    return size if size == size else float("inf")  # noqa: PLR0124 (only NaN differs from itself)


def wrong_elements(subject: Subject, seen: Seen) -> Tensor | None:
    """Elements outside the bound, bool of the answer's shape; None for an answer of odd shape."""
    known = subject.golden(seen.inputs)
    if known.output.shape != seen.output.shape:
        return None
    skipped = ~known.representable
    if subject.declaration.empty_rows == "any":
        skipped = skipped | known.empty_rows
    same_nan = torch.isnan(seen.output) & torch.isnan(known.output)
    far = ~((seen.output - known.output).abs() <= known.bound) & ~same_nan
    return far & ~skipped
