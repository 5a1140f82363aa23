"""Names the mistake behind wrong gradients: wrong backward passes acted out on a battery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from ..calls.calling import CandidateFailure
from ..calls.differentiating import Gradients, NotDifferentiable
from ..clauses.judging_gradients import has_empty_rows, output_gradient, with_full_rows
from ..clauses.subject import Subject
from ..oracle.gradient_oracle import GradientAnswer, why_unknown
from ..problems.combinations import options_alone
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model
from .answer_facts import NO_MISTAKE, UNKNOWN
from .mistakes import BACKWARD, NamedMistake, NotExpressible
from .mistakes.backward_pass import gradients_with

# The hand-picked sizes of the battery, of those that every clause begins with.
SIZES: Final = 8
MOST_REPORTED: Final = 6
# The clauses whose problems need not have an option without which gradients may be right.
WHOLE: Final = ("gradients.golden", "gradients.options")
_SPACE: Final = Space(mask="maybe", causal="never", finite_bias="maybe", values=("normal",))
_ROWS: Final = Space(causal="always", values=("normal",))


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedGradients:
    """The gradients of one problem, and what they should be."""

    inputs: Inputs
    upstream: Tensor
    actual: Gradients
    expected: GradientAnswer

    @cached_property
    def wrong(self) -> tuple[str, ...]:
        """The names of the gradients that are beyond their bounds."""
        return tuple(
            name
            for name, exact in self.expected.gradients.items()
            if name in self.actual.by_name
            and not _near(self.actual.by_name[name], exact.value, exact.worst)
        )


class BackwardDiagnostician:
    """Explains wrong gradients of one candidate in one dtype; the battery runs once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def explain(self, clause: str, problem: Problem) -> list[dict[str, Any]]:
        """What explains the failure of a clause on a problem, as the report's entries."""
        candidate = self.subject.candidate
        point = candidate.declaration.semantics
        if not candidate.golden_known or why_unknown(point, candidate.kind):
            return []
        shown = self._observe(problem)
        if shown is not None and has_empty_rows(self.subject, shown.inputs):
            shown = None  # the clause that fails says what such rows return
        every = [*self.observed, *([] if shown is None else [shown])]
        wrong = [gradients for gradients in every if gradients.wrong]
        if not wrong:
            explanations = _by_clause(clause, problem)
        else:
            explanations = self._by_gradients(every)
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

    @cached_property
    def observed(self) -> list[ObservedGradients]:
        """The gradients on the battery; what the candidate refuses is left out."""
        observed = (self._observe(problem) for problem in self._battery())
        return [each for each in observed if each is not None]

    def _battery(self) -> Iterator[Problem]:
        candidate, dtype = self.subject.candidate, self.subject.dtype
        problems = edge_problems(candidate, _SPACE, dtype=dtype)[:SIZES]
        problems += options_alone(candidate, _SPACE, dtype=dtype)
        if candidate.declaration.causal is not None:
            problems += edge_problems(candidate, _ROWS, dtype=dtype)[:SIZES]
        yield from dict.fromkeys(problems)

    def _observe(self, problem: Problem) -> ObservedGradients | None:
        subject = self.subject
        with subject.recorded(None):
            try:
                inputs = with_full_rows(subject, problem)
                upstream = output_gradient(subject, problem, inputs)
                actual = subject.gradients.of(inputs, upstream)
            except (CandidateFailure, NotDifferentiable):
                return None
        expected = subject.gradients.oracle.answer(inputs, upstream)
        if not expected.representable:
            return None
        return ObservedGradients(inputs=inputs, upstream=upstream, actual=actual, expected=expected)


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


def _near(actual: Tensor, expected: Tensor, bound: Tensor) -> bool:
    return bool(((actual.double() - expected).abs() <= bound).all())


def _explains(mistake: NamedMistake, every: Sequence[ObservedGradients], point: Any) -> bool:
    """Whether a mistake gives every observed gradient, and once another one than the golden."""
    if mistake.backward is None:
        return False
    shows = False
    for observed in every:
        try:
            acted = gradients_with(observed.inputs, point, observed.upstream, mistake.backward)
        except NotExpressible:
            return False
        actual = observed.actual.by_name
        for name, exact in observed.expected.gradients.items():
            if name not in actual or name not in acted:
                continue
            room = _room(acted[name], exact.value, exact.worst)
            if not _near(actual[name], acted[name], room):
                return False
            shows = shows or not _near(acted[name], exact.value, room)
    return shows


def _room(acted: Tensor, exact: Tensor, bound: Tensor) -> Tensor:
    """How far a candidate with a mistake may be from acting it out; see ``model.ACTED_ROOM``."""
    if not bound.numel():
        return bound
    before, after = float(exact.abs().max()), float(acted.abs().max())
    grown = min(max(1.0, after / before if before > 0.0 else 1.0), model.MOST_GROWN)
    return torch.full_like(bound, model.ACTED_ROOM * grown**2 * float(bound.max()))


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
