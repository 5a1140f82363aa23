"""Clauses that measure with the sharpest bound there is."""

from __future__ import annotations

from torch import Tensor

from ..oracle.comparison import Comparison, compare, moves
from ..oracle.yardstick import Yardstick, fitted_scale_error
from ..problems.inputs import Inputs
from ._vocabulary import Counterfactual, golden_at, has_signal
from .registry import Finding
from .subject import Subject


def measures_golden(
    subject: Subject,
    inputs: Inputs,
    wording: str,
    *,
    counterfactual: Counterfactual | None = None,
    signal: bool = True,
) -> Finding:
    """The answer equals the golden one within the smallest bound that is known to hold.

    ``counterfactual`` is what the example must be able to tell apart: other inputs or another
    point. With ``signal`` answers that are no attention must be clearly wrong, too.
    """
    known = subject.yardstick(inputs)
    answer = subject.answer(inputs)
    found = explained(subject, inputs, answer, measure(known, answer, wording))
    binding = bool(known.judged.any())
    if binding and counterfactual is not None:
        other = golden_at(subject, inputs, counterfactual)
        binding = moves(known.output, other, known.bound, known.judged)
    if binding and signal:
        binding = has_signal(subject.golden(inputs), inputs, known.bound, known.judged)
    return Finding.of(found, binding=binding)


def measure(known: Yardstick, answer: Tensor, wording: str) -> Comparison:
    """Hold an answer against a yardstick."""
    return compare(
        answer,
        known.output,
        known.bound,
        judged=known.judged,
        wording=wording,
        remainder=known.remainder,
    )


def explained(subject: Subject, inputs: Inputs, answer: Tensor, found: Comparison) -> Comparison:
    """A disagreement with the parts of its bound, and the scale that would explain it."""
    if found.kind != "value":
        return found
    return found.replace(
        parts=subject.oracle.shares(inputs, found.index),
        scale_error=fitted_scale_error(subject.oracle, inputs, answer),
    )
