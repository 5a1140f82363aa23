"""Names the mistake behind wrong gradients: wrong backward passes acted out on a battery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from .mistakes import NotExpressible
from .mistakes.backward import BACKWARD, BESIDE, OF_CALLS
from .mistakes.backward_steps import WrongBackward, give_back

# The hand-picked sizes of the battery, of those that every clause begins with.
SIZES: Final = 8
MOST_REPORTED: Final = 6
# The clauses whose problems hand over caches and sinks: each alone, or some.
CLAUSE_OF: Final = {"past": "gradients.cache", "sinks": "gradients.sinks"}
WHOLE: Final = ("gradients.golden", "gradients.options", *CLAUSE_OF.values())
_SPACE: Final = Space(mask="maybe", causal="never", finite_bias="maybe", values=("normal",))
_ROWS: Final = Space(causal="always", values=("normal",))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pulled:
    """What flowed back for one problem, and what should have."""

    inputs: Inputs
    upstream: Tensor
    found: Gradients
    known: GradientAnswer

    def wrong(self) -> tuple[str, ...]:
        """The gradients that are beyond their bounds."""
        return tuple(
            name
            for name, exact in self.known.gradients.items()
            if name in self.found.found
            and not _near(self.found.found[name], exact.value, exact.worst)
        )


class BackwardDiagnostician:
    """Explains wrong gradients of one candidate in one dtype; the battery is asked once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def explain(self, clause: str, problem: Problem) -> list[dict[str, Any]]:
        """What explains the failure of a clause on a problem, as the report's entries."""
        candidate = self.subject.candidate
        point = candidate.declaration.semantics
        if not candidate.golden_known or why_unknown(point, candidate.kind):
            return []
        shown = self._pulled(problem)
        if shown is not None and has_empty_rows(self.subject, shown.inputs):
            shown = None  # what such rows give is told by the clause that fails
        every = [*self.observed, *([] if shown is None else [shown])]
        wrong = [pulled for pulled in every if pulled.wrong()]
        if not wrong:
            told = OF_CALLS.get(clause) or _beside(clause, problem)
            return [] if told is None else [{**told, "confidence": 1.0}]
        named = self._named(every)
        if not named:
            return [_unknown(every, wrong)]
        return [
            {"name": each.name, "text": each.text, "fix": each.fix, "confidence": 1 / len(named)}
            for each in named[:MOST_REPORTED]
        ]

    def _named(self, every: Sequence[Pulled]) -> list[WrongBackward]:
        """The mistakes that explain every gradient, each name once."""
        point = self.subject.declaration.semantics
        fitting = {wrong.name: wrong for wrong in BACKWARD if _explains(wrong, every, point)}
        covered = {name for wrong in fitting.values() for name in wrong.special_of}
        return [wrong for name, wrong in fitting.items() if name not in covered]

    @cached_property
    def observed(self) -> list[Pulled]:
        """What flows back on the battery; what the candidate refuses is left out."""
        pulled = (self._pulled(problem) for problem in self._battery())
        return [each for each in pulled if each is not None]

    def _battery(self) -> Iterator[Problem]:
        candidate, dtype = self.subject.candidate, self.subject.dtype
        problems = edge_problems(candidate, _SPACE, dtype=dtype)[:SIZES]
        problems += options_alone(candidate, _SPACE, dtype=dtype)
        if candidate.declaration.causal is not None:
            problems += edge_problems(candidate, _ROWS, dtype=dtype)[:SIZES]
        yield from dict.fromkeys(problems)

    def _pulled(self, problem: Problem) -> Pulled | None:
        subject = self.subject
        with subject.recorded(None):
            try:
                inputs = with_full_rows(subject, problem)
                upstream = output_gradient(subject, problem, inputs)
                found = subject.gradients.of(inputs, upstream)
            except (CandidateFailure, NotDifferentiable):
                return None
        known = subject.gradients.oracle.answer(inputs, upstream)
        if not known.representable:
            return None
        return Pulled(inputs=inputs, upstream=upstream, found=found, known=known)


def _beside(clause: str, problem: Problem) -> dict[str, str] | None:
    """What a problem hands over whose gradients are right without it."""
    if clause not in WHOLE:
        return None
    given = [name for name in BESIDE if getattr(problem, name) or clause == CLAUSE_OF[name]]
    return BESIDE[given[0]] if len(given) == 1 else None


def _near(got: Tensor, expected: Tensor, bound: Tensor) -> bool:
    return bool(((got.double() - expected).abs() <= bound).all())


def _explains(wrong: WrongBackward, every: Sequence[Pulled], point: Any) -> bool:
    """Whether a mistake gives what was found everywhere, and tells itself from none once."""
    told = False
    for pulled in every:
        try:
            acted = give_back(pulled.inputs, point, pulled.upstream, wrong)
        except NotExpressible:
            return False
        for name, exact in pulled.known.gradients.items():
            if name not in pulled.found.found or name not in acted:
                continue
            room = _room(acted[name], exact.value, exact.worst)
            if not _near(pulled.found.found[name], acted[name], room):
                return False
            told = told or not _near(acted[name], exact.value, room)
    return told


def _room(acted: Tensor, exact: Tensor, bound: Tensor) -> Tensor:
    """How far a candidate with a mistake may be from acting it out; see ``model.ACTED_ROOM``."""
    if not bound.numel():
        return bound
    before, after = float(exact.abs().max()), float(acted.abs().max())
    grown = min(max(1.0, after / before if before > 0.0 else 1.0), model.MOST_GROWN)
    return torch.full_like(bound, model.ACTED_ROOM * grown**2 * float(bound.max()))


def _unknown(every: Sequence[Pulled], wrong: Sequence[Pulled]) -> dict[str, Any]:
    """What is true of gradients that no named mistake explains."""
    names = list(dict.fromkeys(name for pulled in wrong for name in pulled.wrong()))
    facts: dict[str, Any] = {"asked": len(every), "wrong": len(wrong), "gradients": names}
    told = f"the gradients of {', '.join(names)} go wrong in {len(wrong)} of {len(every)} problems"
    if any(not bool(p.found.found[name].isfinite().all()) for p in wrong for name in p.wrong()):
        facts["finite"] = False
        told += "; not all of them are finite"
    factor = _common_factor(wrong)
    if factor is not None:
        facts["ratio"] = factor
        told += f"; they are {factor:.6g} times what is expected"
    return {
        "name": "unknown-mistake",
        "text": f"no known mistake explains it: {told}",
        "fix": "",
        "confidence": 0.0,
        "facts": facts,
    }


def _common_factor(wrong: Sequence[Pulled]) -> float | None:
    """The one number that wrong gradients are times the right ones, if there is one."""
    factors = [_factor(pulled.found.found, pulled) for pulled in wrong]
    known = [each for each in factors if each is not None]
    if len(known) < len(factors) or max(known) - min(known) > model.NEARLY_NOTHING**0.5:
        return None
    return known[0]


def _factor(found: Mapping[str, Tensor], pulled: Pulled) -> float | None:
    names = pulled.wrong()
    got = torch.cat([found[name].double().flatten() for name in names])
    expected = torch.cat([pulled.known.gradients[name].value.flatten() for name in names])
    size = float(expected.square().sum())
    if not size or not bool(got.isfinite().all()):
        return None
    factor = float((got * expected).sum()) / size
    left = float((got - factor * expected).square().sum())
    apart = float((got - expected).square().sum())
    return factor if left <= model.NEARLY_NOTHING * apart else None
