"""Names a scale with a relative error, and the head sizes at which it has the error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor

from ..calls.calling import CandidateFailure
from ..clauses.subject import Subject
from ..oracle.yardstick import fitted_scale_error
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model
from ..tolerance.fit import Fit
from .battery import answer_to
from .entries import named_entry
from .precision_diagnosis import Observed, agrees, probed

# Names of one scale for all scores, by a rule.
_RULE: Final = re.compile(r"scale-(?!off$|forgotten-|compounds-)[a-z0-9-]+")
_FIX_ROUNDED: Final = (
    "compute the scale in double precision, as numbers of Python are, and use it once"
)
_FIX_WRONG: Final = (
    "multiply the dot products by 1/sqrt(head size), or by the scale of the call, once"
)


def are_slight(subject: Subject, observed: Observed) -> bool:
    """Whether all errors are as small as those of a rounded scale."""

    def is_slight(inputs: Inputs, output: Tensor) -> bool:
        expected = subject.golden(inputs).output
        most = model.MOST_ROUNDED_SCALE * expected.abs().amax() if expected.numel() else 0.0
        return expected.shape == output.shape and bool(((output - expected).abs() <= most).all())

    return all(is_slight(*pair) for pair in observed)


def scale_entry(subject: Subject, observed: Observed) -> dict[str, Any] | None:
    """Return the entry of a wrong scale, if its relative error explains every wrong answer."""
    wrong: list[tuple[Inputs, Tensor]] = []
    right: list[tuple[Inputs, Tensor]] = []
    known: list[float] = []
    for pair in observed:
        if agrees(subject, *pair):
            right.append(pair)
            continue
        error = fitted_scale_error(subject.oracle, *pair)
        if error is None:  # another cause: the other errors do not matter
            known.clear()
            break
        wrong.append(pair)
        known.append(error)
    if known:
        middle = 1.0 + sum(known) / len(known)
        spared = [pair for pair in right if not agrees(subject, *pair, factor=middle)]
        if any(_is_alike(pair[0], wrong) for pair in spared) or not all(
            _answers_again(subject, *pair) for pair in wrong
        ):
            return None
        where = _where(subject, wrong, spared)
        return None if where is None else _scale(min(known), max(known), where)
    averaged = _averaged_scale_error(subject)
    if averaged is None or not all(
        # Right answers, too, limit the error of the scale.
        agrees(subject, *pair, factor=1.0 + averaged[1].scale_error)
        for pair in observed
    ):
        return None
    found = averaged[1]
    entry = _scale(found.scale_error, found.scale_error, where="")
    # Another mistake may have a similar effect: the scale explains only a part of the errors.
    return {**entry, "confidence": _part(found)}


def _is_alike(inputs: Inputs, wrong: Observed) -> bool:
    def made(one: Inputs) -> tuple[float | None, int]:
        return one.scale, one.geometry.head_size

    return made(inputs) in [made(other) for other, _ in wrong]


def _part(found: Fit) -> float:
    return 1.0 - (found.unexplained / found.rms) ** 2


def _a_factor_explains(subject: Subject, inputs: Inputs, output: Tensor) -> float:
    known = subject.golden(inputs)
    judged = known.judged.expand(known.output.shape)
    weight = known.bound[judged].clamp_min(model.LOST_WEIGHT).reciprocal()
    error = (output - known.output)[judged] * weight
    along = known.output[judged] * weight
    total = float(error.square().sum() * along.square().sum())
    return float((error * along).sum()) ** 2 / total if total > 0.0 else 0.0


def _answers_again(subject: Subject, inputs: Inputs, output: Tensor) -> bool:
    try:
        again = subject.answer(inputs).double()
    except CandidateFailure:
        return False
    known = subject.golden(inputs)
    judged = known.judged.expand(known.output.shape)
    weight = known.bound[judged].clamp_min(model.LOST_WEIGHT).reciprocal()
    apart = float(((again - output)[judged] * weight).square().sum())
    error = float(((output - known.output)[judged] * weight).square().sum())
    return apart <= model.LARGEST_UNEXPLAINED * error


def _averaged_scale_error(subject: Subject) -> tuple[Inputs, Fit] | None:
    """Return a scale error that only many elements together show."""
    for inputs, output in probed(subject):
        measured = subject.yardstick(inputs)
        found = measured.fit(output)
        if found is None or not found.blames_scale:
            continue
        if _a_factor_explains(subject, inputs, output) >= model.EXPLAINED_BY_SCALE * _part(found):
            return None  # answers that are too large or small as a whole lean that way, too
        again = measured.fit(subject.answer(inputs).double())
        if again is None or abs(again.scale_error - found.scale_error) > found.scale_allowed:
            return None
        return inputs, found
    return None


def _where(subject: Subject, wrong: Observed, spared: Observed) -> str | None:
    """Name the head sizes with a wrong scale; None if other properties decide.

    ``spared`` are right answers that the same error would have spoilt.
    """
    seen, right = (
        sorted({subject.golden(inputs).core.query.shape[-1] for inputs, _ in some})
        for some in (wrong, spared)
    )
    if not set(seen).isdisjoint(right):
        return None
    if right:
        return f" at {_sizes(seen)}; it is right at {_sizes(right)}"
    return f" (seen at {_sizes(seen)} only)" if len(seen) == 1 else ""


def _sizes(sizes: Sequence[int]) -> str:
    *others, last = map(str, sizes)
    return f"head sizes {', '.join(others)} and {last}" if others else f"head size {last}"


def _scale(least: float, most: float, where: str) -> dict[str, Any]:
    one, other = f"{least:+.3g}", f"{most:+.3g}"
    error = one if one == other else f"between {one} and {other}"
    largest = most if abs(most) >= abs(least) else least
    return named_entry(
        "scale-off",
        f"the logits are multiplied by a scale whose relative error is {error}{where}",
        _FIX_ROUNDED if abs(largest) <= model.MOST_ROUNDED_SCALE else _FIX_WRONG,
        scale_error=largest,
    )


def add_numbers(
    subject: Subject, entries: list[dict[str, Any]], problem: Problem | None
) -> list[dict[str, Any]]:
    """Add the number of the scale to names of a rule, if sizes do not identify the rule.

    This concerns graphs, whose head size is fixed, and several equally good names.
    """
    fixed = subject.candidate.kind == "graph" or len(entries) > 1
    ruled = all(_RULE.fullmatch(str(entry["name"])) for entry in entries)
    if problem is None or not fixed or not ruled:
        return entries
    answer = answer_to(subject, subject.inputs(problem))
    error = (
        None if answer is None else fitted_scale_error(subject.oracle, answer.inputs, answer.output)
    )
    if answer is None or error is None:
        return entries
    right = answer.exact.core.scale
    here = f"the scores are multiplied by {right * (1.0 + error):.4g}, not by {right:.4g}"
    fix = f"multiply them by {right:.6g}"
    return [
        {**entry, "text": f"{here}, as where {entry['text']}", "fix": f"{fix}: {entry['fix']}"}
        for entry in entries
    ]
