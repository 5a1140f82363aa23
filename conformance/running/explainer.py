"""Failures of a candidate made small and named; loaded with the first one, diagnosis and all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ..base.limits import uncollected
from ..base.mistake import UNKNOWN
from ..base.results import RACE, WRONG_ANSWERS, ClauseResult, Violation
from ..calls.recording import Recording
from ..clauses.registry import Clause
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..errors import UsageError, fault_of
from ..problems.problem import Problem
from .clause_problems import FailureMemory
from .clause_run import ClauseRun
from .shrinking.counterexample import describe
from .shrinking.smallest import (
    Failure,
    Smallest,
    copy_scale_error,
    examine,
    examine_recorded,
    same_failure,
    smallest_failure,
)
from .tally import Tally

with uncollected():  # beside all that a run has made, a collection takes as long as this
    from ..diagnosis.answer_facts import lost_search_entry, shared_confidence
    from ..diagnosis.chance import UNORDERED, threads_entry
    from ..diagnosis.mistakes import named_mistakes
    from ..diagnosis.refused_sizes import RAISES, RIGHT, WRONG
    from .causes import Causes

# The share of a profile's remaining reductions for the next failing clause.
SHARE_OF_ONE_CLAUSE = 0.3
# Tries for slow calls without a name found so far.
TRIES_OF_SLOW_CALLS: Final = 6
# Losing a process or much memory costs seconds a try: few tries, and none for a hang.
TRIES_OF_A_LOSS = {"hung": 0, "crashed": 8, "memory": 2}


class Explainer:
    """Reduces and names the failures of one candidate.

    ``reductions_left``: the number of further tries of reduced problems.
    """

    def __init__(
        self,
        candidate: Candidate,
        *,
        reductions: int,
        memory: FailureMemory | None,
    ) -> None:
        self.causes: Final = Causes(candidate, named_mistakes())
        self.reductions_left = reductions
        self._candidate: Final = candidate
        self._memory: Final = memory
        self._reduced: dict[Problem, None] = {}  # in order, each once

    @staticmethod
    def though_unexplained(
        failure: ClauseResult, explain: Callable[[], ClauseResult]
    ) -> ClauseResult:
        """Return the explained failure; the unexplained failure if the harness fails meanwhile."""
        try:
            return explain()
        except Exception as error:  # noqa: BLE001 (a verdict stands though its cause stays unknown)
            return failure.replace(diagnosis=[lost_search_entry(fault_of(error))])

    def explain_chance(self, failure: Failure) -> ClauseResult:
        """Return the result of a failure that did not recur, with a known random cause."""
        causes, asked = self.causes, (failure.subject, failure.fails, failure.violation.kind)
        chance = causes.chance(failure.problem, *asked) or causes.unrepeatable(*asked)
        return failure.result.replace(diagnosis=[chance] if chance else [])

    def result(self, failure: Failure, clause_run: ClauseRun) -> ClauseResult:
        """Return a failure reduced and named; with slow calls from the calls made, if possible."""
        slow = failure.subject.slow_calls
        told = self._explain_few_calls(failure, clause_run) if slow else None
        return told or self._searched_result(failure, clause_run)

    def _searched_result(self, failure: Failure, clause_run: ClauseRun) -> ClauseResult:
        clause, subject, kind = failure.clause, failure.subject, failure.violation.kind
        causes, chance = self.causes, None
        threaded = threads_entry(failure.violation)
        if threaded is not None and threaded["name"] == RACE:  # no smaller problem need show it
            return _drawn_result(failure, failure.violation, threaded)
        if kind in _OF_CHANCE and threaded is None:
            chance = causes.chance(failure.problem, subject, failure.fails, kind)
        if chance is not None and chance["name"] != UNORDERED and not clause.of_repetition:
            return _random_failure(failure, chance)
        ends_ranks = kind == "raised" and self._candidate.declaration.ranks is not None
        tally = Tally(examples=failure.result.examples)

        def on_example(smaller: dict[str, Any]) -> None:
            clause_run.on_example(smaller, tally)

        smallest = smallest_failure(
            clause,
            subject,
            failure.problem,
            failure.violation,
            tries=self._tries(subject, "crashed" if ends_ranks else kind),
            reduced_problems=tuple(self._reduced),
            on_example=on_example,
            until=clause_run.until,
        )
        self.reductions_left -= smallest.tries
        self._reduced[smallest.problem.replace(overrides=None)] = None
        if self._memory is not None:
            self._memory.keep(self._candidate, clause.id, smallest.problem)
        violation = copy_scale_error(smallest.violation, failure.violation)
        in_time = not clause_run.is_over
        diagnosis: list[dict[str, Any]] = []
        failing = replace(failure, problem=smallest.problem, violation=smallest.violation)
        entry = threaded or chance or causes.changed_inputs(subject, clause, failing.fails)
        if entry is not None:
            diagnosis = [entry]
        elif self._is_diagnosed(clause, kind, subject) and in_time:
            diagnosis = causes.named(subject, clause, smallest.problem, clause_run)
        elif kind == "raised" and in_time:
            diagnosis = self._explain_exception(failing, clause_run)
        if in_time and all(entry["name"] == UNKNOWN for entry in diagnosis):
            asked = subject, failing.fails, failing.violation.kind
            entry = causes.unrepeatable(*asked) or causes.strides(*asked)
            diagnosis = [entry] if entry else diagnosis
        return failure.result.replace(
            status="failed",
            reason=violation.message,
            violation=violation,
            counterexample=describe(clause.id, subject, smallest),
            diagnosis=self._catalogued(diagnosis),
            blame=causes.blame(subject, clause, smallest, on_example) if in_time else None,
        )

    def _tries(self, subject: Subject, kind: str) -> int:
        tries = int(self.reductions_left * SHARE_OF_ONE_CLAUSE)
        most = TRIES_OF_SLOW_CALLS if subject.slow_calls else tries
        return min(tries, most, TRIES_OF_A_LOSS.get(kind, tries))

    def _explain_few_calls(self, failure: Failure, clause_run: ClauseRun) -> ClauseResult | None:
        """Diagnose and reduce a failure from calls already made; None if they do not suffice."""
        clause, subject, found = failure.clause, failure.subject, failure.violation
        if self._candidate.kind not in ("core", "layer") or found.kind not in WRONG_ANSWERS:
            return None
        if not self._candidate.golden_known or clause_run.is_over:
            return None
        few = self.causes.few_calls_of(subject)
        explanations = few.explain(clause, failure.problem)
        if not explanations:
            return None
        tries = int(self.reductions_left * SHARE_OF_ONE_CLAUSE)
        smaller = few.smaller(explanations[0].made, clause, failure.problem, found, tries)
        for problem in dict.fromkeys((smaller, failure.problem)):
            finding, recording = examine_recorded(clause, subject, problem)
            shown = finding.violation
            if shown is not None and same_failure(found, shown):
                smallest = Smallest(
                    problem=problem, violation=shown, recording=recording, tries=0, repeated=True
                )
                diagnosis = shared_confidence([one.entry for one in explanations])
                return failure.result.replace(
                    status="failed",
                    reason=shown.message,
                    violation=shown,
                    counterexample=describe(clause.id, subject, smallest),
                    diagnosis=self._catalogued(diagnosis),
                )
        return None

    def _catalogued(self, diagnosis: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add to every entry whether its name is catalogued, for candidates nobody declared."""
        reading, known = self._candidate.reading, self.causes.are_unmeant
        if reading is None:
            return diagnosis
        return [
            {**entry, "catalogued": known(str(entry["name"]), reading.meant)} for entry in diagnosis
        ]

    def _explain_exception(self, failing: Failure, clause_run: ClauseRun) -> list[dict[str, Any]]:
        """Explain an exception: by a mistake visible in other answers, or by the call's sizes."""
        subject, problem, mistaken = failing.subject, failing.problem, []
        if self._candidate.eager is None:  # a search that broke hides no refused size
            found = self.causes.explain_exception(subject, problem, clause_run)
            mistaken = [entry for entry in found if entry["name"] != UNKNOWN]
        return self.causes.refused_sizes(
            subject, problem, failing.violation, partial(_asked, failing), clause_run, mistaken
        )

    def _is_diagnosed(self, clause: Clause, kind: str, subject: Subject) -> bool:
        """Tell whether a failure is diagnosed; of laws only the first failure of a subject is."""
        ranks = self._candidate.declaration.ranks is not None
        if ranks and (clause.family == "ranks" or kind == "raised"):
            return True
        first = clause.level == "MUST" and not ranks and subject not in self.causes.diagnosticians
        plain = kind in WRONG_ANSWERS and self._candidate.eager is None
        return plain and (clause.explained or first)


# The kinds of violation that unordered work on a device may cause.
_OF_CHANCE: Final = (*WRONG_ANSWERS, "mutated", "memory")


def _asked(failure: Failure, problem: Problem) -> tuple[str, str] | None:
    """Return a problem's outcome and message; None for a problem that cannot be asked."""
    try:
        finding = examine(failure.clause, failure.subject, problem)
    except UsageError:  # the declaration does not hold for it
        return None
    if finding.refused:
        return None
    violation = finding.violation
    if violation is None:
        return RIGHT, ""
    return RAISES if violation.kind == failure.violation.kind else WRONG, violation.message


def _random_failure(failure: Failure, random: dict[str, Any]) -> ClauseResult:
    """Replace the reason of a failure by the randomness of the answers, without reduction.

    The difference between two random answers explains nothing.
    """
    reason = "equal calls give different answers, which says nothing of what this clause is about"
    violation = Violation(kind=failure.violation.kind, message=reason)
    return _drawn_result(failure, violation, random)


def _drawn_result(failure: Failure, violation: Violation, entry: dict[str, Any]) -> ClauseResult:
    smallest = Smallest(
        problem=failure.problem, violation=violation, recording=Recording(), tries=0, repeated=False
    )
    return failure.result.replace(
        status="failed",
        reason=violation.message,
        violation=violation,
        counterexample=describe(failure.clause.id, failure.subject, smallest),
        diagnosis=[entry],
    )
