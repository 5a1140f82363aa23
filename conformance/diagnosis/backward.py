"""Names the mistake behind wrong gradients: wrong backward passes acted out on a battery."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import torch

from .._golden import golden
from ..clauses.judging_gradients import has_empty_rows
from ..clauses.subject import Subject
from ..oracle.gradient_oracle import why_unknown
from ..problems.problem import Problem
from ..tolerance import model
from .answer_facts import NO_MISTAKE, UNKNOWN
from .dissection.backward import backward_statements
from .mistakes import BACKWARD, NamedMistake, NotExpressible
from .mistakes.backward_pass import gradients_with
from .observed_gradients import (
    ObservedGradients,
    battery_gradients,
    further_gradients,
    near,
    observe_gradients,
    room,
)

MOST_REPORTED: Final = 6
# The clauses whose problems need not have an option without which gradients may be right.
WHOLE: Final = ("gradients.golden", "gradients.options")


class BackwardDiagnostician:
    """Explains wrong gradients of one candidate in one dtype; the battery runs once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._confirming: list[ObservedGradients] | None = None

    def explain(self, clause: str, problem: Problem) -> list[dict[str, Any]]:
        """What explains the failure of a clause on a problem, as the report's entries."""
        candidate = self.subject.candidate
        point = candidate.declaration.semantics
        if not candidate.golden_known or why_unknown(point, candidate.kind):
            return []
        shown = observe_gradients(self.subject, problem)
        if shown is not None and has_empty_rows(self.subject, shown.inputs):
            shown = None  # the clause that fails says what such rows return
        every = [*self.observed, *([] if shown is None else [shown])]
        wrong = [gradients for gradients in every if gradients.wrong]
        if not wrong:
            explanations = _by_clause(clause, problem)
        else:
            explanations = self._by_gradients(every) or self._read(every)
            if not explanations and all(each.wrong == ("bias",) for each in wrong):
                explanations = _by_clause(clause, problem)
            if not explanations:
                return [_unknown(every, wrong)]
        confidence = 1 / max(len(explanations), 1)
        return [
            {"name": m.name, "text": m.sentence, "fix": m.fix, "confidence": confidence}
            for m in explanations[:MOST_REPORTED]
        ]

    def _by_gradients(self, every: Sequence[ObservedGradients]) -> list[NamedMistake]:
        """The mistakes that explain every gradient, each name once."""
        point = self.subject.declaration.semantics
        return list({m.name: m for m in BACKWARD if _explains(m, every, point)}.values())

    def _read(self, every: Sequence[ObservedGradients]) -> list[NamedMistake]:
        """The simplest statement that explains every gradient, and those of further problems.

        Each gradient that it concerns must be wrong in some of the latter, too.
        """
        point = self.subject.declaration.semantics
        proposed = (
            one for one in backward_statements(every, point) if _explains(one, every, point)
        )
        for statement in proposed:
            names = {name for each in every for name in each.wrong}
            seen = {name for each in self._further(every) for name in each.wrong}
            if names <= seen and _explains(statement, self._further(every), point):
                return [statement]
        return []

    def _further(self, every: Sequence[ObservedGradients]) -> list[ObservedGradients]:
        """The gradients on problems that no statement was made of."""
        if self._confirming is None:
            self._confirming = further_gradients(self.subject, every)
        return self._confirming

    @cached_property
    def observed(self) -> list[ObservedGradients]:
        """The gradients on the battery."""
        return battery_gradients(self.subject)


def _by_clause(clause: str, problem: Problem) -> list[NamedMistake]:
    """The mistake of a clause that fails alone, or of the only option that a problem has."""
    unstepped = [mistake for mistake in BACKWARD if mistake.backward is None]
    options = [mistake for mistake in unstepped if mistake.right_without]
    for mistake in unstepped:
        if mistake not in options and mistake.primary == clause:
            return [mistake]
    if clause not in WHOLE and not any(clause in mistake.also for mistake in options):
        return []
    present = [m for m in options if getattr(problem, m.right_without) or clause in m.also]
    return present if len(present) == 1 else []


def _explains(
    mistake: NamedMistake, every: Sequence[ObservedGradients], point: golden.Semantics
) -> bool:
    """Whether a mistake gives every observed gradient, and once another one than the golden.

    A mistake of the inputs' gradients may leave that of an additive mask right.
    """
    if mistake.backward is None:
        return False
    shows = False
    mask_is_right = not any("bias" in observed.wrong for observed in every)
    for observed in every:
        try:
            acted = gradients_with(observed.inputs, point, observed.upstream, mistake.backward)
        except NotExpressible:
            return False
        actual = observed.actual.by_name
        for name, exact in observed.expected.gradients.items():
            if name not in actual:
                continue
            if name not in acted or (name == "bias" and mask_is_right):
                if name in observed.wrong:
                    return False
                continue
            allowed = room(acted[name], exact.value, exact.worst)
            if not near(actual[name], acted[name], allowed):
                return False
            shows = shows or not near(acted[name], exact.value, allowed)
    return shows


def _unknown(
    every: Sequence[ObservedGradients], wrong: Sequence[ObservedGradients]
) -> dict[str, Any]:
    """What is true of gradients that no named mistake explains."""
    names = list(dict.fromkeys(name for each in wrong for name in each.wrong))
    facts: dict[str, Any] = {"asked": len(every), "wrong": len(wrong), "gradients": names}
    text = f"the gradients of {', '.join(names)} go wrong in {len(wrong)} of {len(every)} problems"
    if not all(
        bool(each.actual.by_name[name].isfinite().all()) for each in wrong for name in each.wrong
    ):
        facts["finite"] = False
        text += "; not all of them are finite"
    factor = _common_factor(wrong)
    if factor is not None:
        facts["ratio"] = factor
        text += f"; they are {factor:.6g} times what is expected"
    return {
        "name": UNKNOWN,
        "text": f"{NO_MISTAKE}: {text}",
        "fix": "",
        "confidence": 0.0,
        "facts": facts,
    }


def _common_factor(wrong: Sequence[ObservedGradients]) -> float | None:
    """The one number that wrong gradients are times the right ones, if there is one."""
    factors = [_factor(each) for each in wrong]
    numbers = [factor for factor in factors if factor is not None]
    if len(numbers) < len(factors) or max(numbers) - min(numbers) > model.NEARLY_NOTHING**0.5:
        return None
    return numbers[0]


def _factor(observed: ObservedGradients) -> float | None:
    gradients = observed.expected.gradients
    actual = torch.cat(
        [observed.actual.by_name[name].double().flatten() for name in observed.wrong]
    )
    expected = torch.cat([gradients[name].value.flatten() for name in observed.wrong])
    size = float(expected.square().sum())
    if not size or not bool(actual.isfinite().all()):
        return None
    factor = float((actual * expected).sum()) / size
    left = float((actual - factor * expected).square().sum())
    total = float((actual - expected).square().sum())
    return factor if left <= model.NEARLY_NOTHING * total else None
