"""Names a mistake of precision: a scale that is slightly off, or a rounding nobody declared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ._golden import golden
from .calling import CandidateFailure
from .clauses.precision import AVERAGED, NEARLY_TIED
from .comparison import compare
from .edges import edge_problems
from .inputs import Inputs
from .oracle import known_weights
from .precision_losses import COARSER, LOSSES, PrecisionLoss, to_format
from .scale_error import fitted_scale_error
from .subject import Subject
from .tolerance import model

Observed = Sequence[tuple[Inputs, Tensor]]
# Edge problems of each space that the candidate is asked: one of each recipe.
PROBED: Final = 2


def scale_entry(subject: Subject, observed: Observed) -> dict[str, Any] | None:
    """The scale as the mistake, with its relative error, if it explains every wrong answer."""
    wrong = [pair for pair in observed if not _agrees(subject, *pair)]
    errors = [fitted_scale_error(subject.oracle, *pair) for pair in wrong]
    known = [error for error in errors if error is not None]
    if known and len(known) == len(wrong):
        return _scale(min(known), max(known))
    averaged = _averaged_scale_error(subject)
    if averaged is None or not all(
        _agrees(subject, *pair, factor=1.0 + averaged) for pair in wrong
    ):
        return None
    return _scale(averaged, averaged)


def _averaged_scale_error(subject: Subject) -> float | None:
    """The same where single answers are too few or too coarse, and many elements together tell."""
    for inputs, output in _probed(subject):
        found = subject.yardstick(inputs).fit(output)
        if found is not None and found.blames_scale:
            return found.scale_error
    return None


def _scale(least: float, most: float) -> dict[str, Any]:
    one, other = f"{least:+.3g}", f"{most:+.3g}"
    told = one if one == other else f"between {one} and {other}"
    return {
        "name": "scale-off",
        "text": f"the logits are multiplied by a scale whose relative error is {told}",
        "confidence": 1.0,
        "scale_error": most if abs(most) >= abs(least) else least,
    }


def precision_entry(subject: Subject, observed: Observed) -> dict[str, Any] | None:
    """The loss of precision that, acted out, gives the candidate's answers; None if none does."""
    every = [*observed, *_probed(subject)]
    wrong = [pair for pair in every if not _agrees(subject, *pair)]
    if not wrong or any(output.shape != inputs.output_shape for inputs, output in wrong):
        return None
    coarse = _coarse_format(subject, every)
    if coarse is not None:
        return {
            "name": f"computed-in-{coarse}",
            "text": f"it computes in {coarse} inside: its answers are all {coarse} numbers",
            "confidence": 1.0,
        }
    left = [(_unexplained(subject, loss, wrong), loss) for loss in LOSSES]
    # Several may explain it, one that rounds more stages too: the simple ones come first.
    enough = [pair for pair in left if pair[0] <= model.LARGEST_LEFT_BY_LOSS**2]
    least, best = enough[0] if enough else min(left, key=lambda pair: pair[0])
    if least > model.LARGEST_LEFT_BY_LOSS:
        return None
    return {"name": best.name, "text": best.text, "confidence": 1.0 - least}


def _probed(subject: Subject) -> Iterator[tuple[Inputs, Tensor]]:
    """Answers to problems that bring out losses of precision."""
    for space in (AVERAGED, NEARLY_TIED):
        if space.not_applicable(subject.candidate):
            continue
        for problem in edge_problems(subject.candidate, space, dtype=subject.dtype)[:PROBED]:
            inputs = subject.inputs(problem)
            try:
                yield inputs, subject.answer(inputs).double()
            except CandidateFailure:
                continue


def _agrees(subject: Subject, inputs: Inputs, output: Tensor, *, factor: float = 1.0) -> bool:
    """Whether an answer is the golden one, at a multiple of the scale."""
    known = subject.golden(inputs)
    if known.output.shape != output.shape:
        return False
    if factor != 1.0:
        known = subject.golden(inputs.replace(scale=known.core.scale * factor))
    return compare(output, known.output, known.bound, judged=known.judged).margin <= 1.0


def _coarse_format(subject: Subject, observed: Observed) -> str | None:
    """The coarsest format that holds every answer, of formats coarser than the tensors'.

    Correct answers are numbers of a format that drops 13 bits or more once in thousands of cases.
    """
    judged = []
    for inputs, output in observed:
        rows = subject.golden(inputs).judged.expand(inputs.output_shape)
        judged.append(output[rows] if output.shape == rows.shape else output.flatten())
    answers = torch.cat(judged)
    telling = answers[torch.frexp(answers).mantissa.abs() != 0.5]  # noqa: PLR2004 (powers of two)
    if telling.numel() < model.FEWEST_FITTED:
        return None
    for name in COARSER[subject.dtype]:
        if bool((to_format(name)(telling) == telling).all()):
            return name
    return None


def _unexplained(subject: Subject, loss: PrecisionLoss, wrong: Observed) -> float:
    """What a loss leaves of the squared errors, each in units of its bound: 0 is all explained.

    Rows that are not finite do not count: formats differ in where they overflow.
    """
    left = total = 0.0
    for inputs, output in wrong:
        known = subject.golden(inputs)
        judged = known.judged & torch.isfinite(output).all(dim=-1, keepdim=True)
        judged = judged.expand(known.output.shape)
        weight = known.bound[judged].clamp_min(model.LOST_WEIGHT).reciprocal()
        acted = _acted(subject, inputs, known.evaluation, loss)
        total += float(((output - known.output)[judged] * weight).square().sum())
        left += float(((output - acted)[judged] * weight).square().sum())
    part = left / total if total > 0.0 else math.inf
    return part if math.isfinite(part) else math.inf


def _acted(
    subject: Subject,
    inputs: Inputs,
    evaluation: golden.Attention | golden.MultiHeadAttention,
    loss: PrecisionLoss,
) -> Tensor:
    """The whole answer of a candidate that loses precision in its attention proper."""
    if isinstance(evaluation, golden.Attention):
        return loss.output(evaluation)
    semantics = subject.declaration.semantics
    merged = golden.merge_heads(loss.output(evaluation.core), semantics)
    weights = known_weights(inputs)
    if weights.o is None:
        return merged
    matrix = weights.o[:, : merged.shape[-1]]
    return golden.project(merged, matrix, weights.o_bias if semantics.output_bias else None)
