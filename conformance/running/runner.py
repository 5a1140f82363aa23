"""Runs the clauses of one candidate: plan, examples, reduction, result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

from ..adapters.compiled import profile_for
from ..base.limits import is_slow
from ..base.mistake import UNKNOWN
from ..base.profile import WHOLE, Profile, Shard
from ..base.results import BLAMED_ON_PLATFORM, RACE, WRONG_ANSWERS, ClauseResult, Violation
from ..base.selection import is_selected
from ..calls import torch_state
from ..calls.arrays import no_such_numbers
from ..calls.calling import within_each_call
from ..calls.devices import canonical, why_unusable
from ..calls.integrity import Seal, seal_as_loaded
from ..calls.platform_faults import Spared, platform_fault
from ..calls.recording import Recording
from ..clauses.operators import left_to_eager
from ..clauses.registry import Clause, Finding, all_clauses
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..declare.declaration import WHOLE_MODEL
from ..diagnosis.answer_facts import lost_search_entry, shared_confidence
from ..diagnosis.chance import UNORDERED, threads_entry
from ..diagnosis.mistakes import named_mistakes
from ..diagnosis.refused_sizes import RAISES, RIGHT, WRONG
from ..errors import UsageError, fault_of
from ..problems.pool import Pool
from ..problems.problem import Problem, problem_from_json
from .causes import Causes, own_fault
from .clause_problems import ClauseProblems, FailureMemory
from .clause_run import UNLIMITED, ClauseRun, PlannedClause
from .shrinking.counterexample import describe
from .shrinking.smallest import (
    Smallest,
    examine,
    examine_recorded,
    same_failure,
    smallest_failure,
    with_scale_error,
)
from .tally import Tally, Terms

OnExample = Callable[[dict[str, Any]], None]
# Of the reductions that a profile leaves, the part that the next failing clause may use.
SHARE_OF_ONE_CLAUSE = 0.3
# Tries where calls are slow, and what was asked tells no name.
TRIES_OF_SLOW_CALLS: Final = 6
# What takes a process with it, or much memory, costs seconds a try: few to make it small, none for
# what hangs.
TRIES_OF_A_LOSS = {"hung": 0, "crashed": 8, "memory": 2}


# Runs of a warm process: what they drew and computed is there for candidates like theirs.
PREPARED: Final[list[CandidateRun]] = []


class CandidateRun:
    """One candidate under one profile and seed; its clauses share pools, goldens and bounds.

    Without ``explain`` a failure is neither reduced nor diagnosed.
    """

    def __init__(
        self,
        candidate: Candidate,
        *,
        profile: Profile,
        seed: int = 0,
        dtypes: tuple[str, ...] | None = None,
        devices: tuple[str, ...] | None = None,
        only: tuple[str, ...] = (),
        skip: tuple[str, ...] = (),
        explain: bool = True,
        shard: Shard = WHOLE,
        memory: FailureMemory | None = None,
    ) -> None:
        self.candidate = candidate
        self.profile = profile_for(candidate, profile)
        self.seed = seed
        self.dtypes = dtypes or candidate.declaration.dtypes
        self.devices = tuple(canonical(name) for name in devices or candidate.declaration.devices)
        self.only = only
        self.skip = skip
        self.explain = explain
        self.shard = shard
        self.memory = memory
        # What a trial call took; 0.0 where none was made.
        self.call_seconds = 0.0
        self._leading = ""
        self.pool = self._pool()
        self.reductions_left = self.profile.reductions
        self._reduced: dict[Problem, None] = {}  # in order, each once
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._causes = Causes(candidate, named_mistakes() if explain else ())
        # Clauses that were laid aside: their problems, those that are left, and the counts so far.
        self._aside: dict[str, tuple[ClauseProblems, Iterator[Problem], Tally]] = {}
        self._clauses = {clause.id: clause for clause in all_clauses()}

    @property
    def subjects(self) -> list[Subject]:
        """The subjects made so far; their clocks say where the time went."""
        return list(self._subjects.values())

    def forget(self) -> None:
        """Drop problems, goldens and answers: later clauses make them again."""
        self.pool = self._pool()
        self._subjects.clear()
        self._causes.forget()
        self._aside.clear()

    def _pool(self) -> Pool:
        pool = Pool(self.candidate, self.profile, self.seed, leading=self._leading)
        for known in filter(self._is_like, PREPARED):
            pool.share(known.pool)
        return pool

    def planned(self) -> list[PlannedClause]:
        """Every selected clause in every dtype and on every device, in order.

        Those that are not applicable are among them, such as all on a device that is not here.
        """
        with torch_state.neutral():
            plan = self._plan()
        # Whichever part of the plan is run here, the same dtype gets all the examples.
        self._leading = next((planned.dtype for planned in plan if not planned.reason), "")
        self.pool = self._pool()
        return plan

    def _plan(self) -> list[PlannedClause]:
        whole = self.candidate.kind == WHOLE_MODEL  # what speaks of attention says nothing of it
        selected = [
            clause
            for clause in self._clauses.values()
            if is_selected(clause.id, self.only, self.skip)
            and (WHOLE_MODEL in clause.space.kinds) == whole
        ]
        absent = {device: why_unusable(self.candidate, device) for device in self.devices}
        return [
            PlannedClause(
                id=clause.id,
                family=clause.family,
                level=clause.level_for(self.candidate.shown_kind),
                dtype=dtype,
                device=device,
                reason=(
                    absent[device]
                    or no_such_numbers(self.candidate.declaration, dtype)
                    or left_to_eager(self.candidate, clause.id)
                    or clause.not_applicable(self.candidate.on(device))
                ),
            )
            for device in self.devices
            for dtype in self.dtypes
            for clause in selected
        ]

    def run(
        self,
        planned: PlannedClause,
        on_example: OnExample | None = None,
        *,
        clause_run: ClauseRun = UNLIMITED,
    ) -> ClauseResult:
        """Run one clause; its result counts fewer examples than planned where it is not finished.

        That is where the time was up, or it was laid aside. ``on_example`` gets each problem
        (plain data) before it is tried.
        """
        if on_example is not None:
            call = on_example
            clause_run = replace(clause_run, on_example=lambda problem, _tally: call(problem))
        return self._guarded(planned, partial(self._run, self._clauses[planned.id], clause_run))

    def explain_failure(
        self, planned: PlannedClause, failure: ClauseResult, clause_run: ClauseRun = UNLIMITED
    ) -> ClauseResult:
        """Reduce and diagnose the failure of a deferred run.

        A failure that does not occur again stays as it is.
        """
        if not self._is_explained(failure):
            return failure
        explained = partial(self._explained, failure, clause_run)
        return self._guarded(
            planned, lambda result: _though_unexplained(failure, lambda: explained(result))
        )

    def _guarded(
        self, planned: PlannedClause, work: Callable[[ClauseResult], ClauseResult]
    ) -> ClauseResult:
        result = planned.not_applicable()
        if planned.reason:
            return result
        start = time.perf_counter()
        try:
            with torch_state.one_thread(), torch_state.neutral():
                result = work(result)
        except UsageError as error:  # a declaration that does not hold for every problem
            result = result.replace(status="untestable", reason=f"it cannot be asked: {error}")
        except Exception as error:  # noqa: BLE001 (the harness' own fault is a status, not a crash)
            result = result.replace(status="error", reason=own_fault(error))
        return result.replace(seconds=result.seconds + time.perf_counter() - start)

    def subject(self, dtype: str, device: str = "cpu") -> Subject:
        """The candidate under test in one dtype on one device."""
        place = dtype, device
        if place not in self._subjects:
            slow = is_slow(self.call_seconds)
            self._causes.call_seconds = self.call_seconds
            subject = Subject(self.candidate, dtype, device, sealed=self.sealed, slow_calls=slow)
            self._subjects[place] = subject
            for known in filter(self._is_like, PREPARED):
                self._subjects[place].share(known.subject(dtype, device))
        return self._subjects[place]

    def _is_like(self, other: CandidateRun) -> bool:
        """Whether the problems and golden answers of another run are those of this one."""
        own, its = self.candidate, other.candidate
        plain = own.kind == its.kind == "core" and own.graph is None and own is not its
        return plain and own.declaration == its.declaration and self.dtypes == other.dtypes

    @cached_property
    def sealed(self) -> Seal:
        """The judge as it was before the first call of the candidate."""
        return seal_as_loaded()

    def _run(self, clause: Clause, clause_run: ClauseRun, result: ClauseResult) -> ClauseResult:
        subject = self.subject(result.dtype, result.device)
        key = f"{clause.id} {result.dtype} {result.device} {clause_run.round}"
        begun = self._aside.pop(key, None) or self._begun(clause, subject, clause_run.round)
        problems, left, tally = begun
        blamed = ""

        def counted() -> ClauseResult:
            return result.replace(
                examples=tally.examples,
                binding=tally.binding,
                margin=tally.margin,
                trail=tally.trail(),
                reason="",
            )

        def covered() -> ClauseResult:
            numbers = () if clause_run.round else tally.numbers
            coverage = self.pool.coverage(clause.space, result.dtype, numbers)
            return counted().replace(coverage=coverage)

        def unfinished(so_far: ClauseResult) -> ClauseResult:
            planned = max(tally.planned, tally.examples + 1)
            return so_far.replace(status="untestable", planned=planned)

        for problem in left:
            if clause_run.is_over:
                return unfinished(covered())
            clause_run.on_example(problem.as_json(), tally)
            finding = examine(clause, subject, problem)
            if subject.slow_calls:
                subject.asked.append(problem)
            if finding.violation is not None:
                own = _without_platform(clause, subject, problem)
                blamed, finding = (blamed, finding) if own is None else own
            tally.add(finding)
            if finding.violation is not None:
                tally.failed = True
                failure = _Failure(clause, subject, problem, finding.violation, covered())
                return self._failed(failure, clause_run)
            problems.passed(problem)
            if clause_run.most is not None and tally.examples >= clause_run.most:
                self._aside[key] = begun
                return unfinished(counted())
        status, reason = tally.outcome()
        return covered().replace(status=status, reason=reason or blamed)

    def _begun(
        self, clause: Clause, subject: Subject, number: int
    ) -> tuple[ClauseProblems, Iterator[Problem], Tally]:
        """The problems of a clause in a round, as they are drawn, and the counts of no example."""
        terms = Terms(
            counterfactual=clause.counterfactual or "",
            subtle=clause.subtle,
            excused=clause.subtle or bool(self.candidate.declaration.precision),
        )
        tally = Tally(terms=terms, shard=self.shard)
        problems = ClauseProblems(clause, subject, pool=self.pool, tally=tally, memory=self.memory)
        return problems, problems.of_round(number), tally

    def _failed(self, failure: _Failure, clause_run: ClauseRun) -> ClauseResult:
        """Remember a failing problem, and report the smallest one."""
        problem, violation = failure.problem, failure.violation
        if self.memory is not None:
            self.memory.keep(self.candidate, failure.clause.id, problem)
        result = failure.result.replace(
            status="failed", reason=violation.message, violation=violation
        )
        result = result.replace(counterexample={"problem": problem.as_json()})
        if not self._is_explained(result) or clause_run.deferred:
            return result
        clause_run.on_failure(result)
        failure = replace(failure, result=result)
        return _though_unexplained(result, lambda: self._reduced_result(failure, clause_run))

    def _is_explained(self, failure: ClauseResult) -> bool:
        """Whether a failure is made small and named: no recommendation of what was only read is."""
        return self.explain and (self.candidate.reading is None or failure.level == "MUST")

    def _explained(
        self, result: ClauseResult, clause_run: ClauseRun, planned: ClauseResult
    ) -> ClauseResult:
        clause = self._clauses[planned.id]
        subject = self.subject(planned.dtype, planned.device)
        problem = problem_from_json((result.counterexample or {})["problem"])
        clause_run.on_failure(result)
        clause_run.on_example(problem.as_json(), Tally())
        violation = examine(clause, subject, problem).violation
        known = violation or result.violation
        if known is None:
            return result
        failure = _Failure(clause, subject, problem, known, result)
        if violation is not None:
            return self._reduced_result(failure, clause_run)
        causes, asked = self._causes, (subject, failure.fails, known.kind)
        chance = causes.chance(problem, *asked) or causes.unrepeatable(*asked)
        return result.replace(diagnosis=[chance] if chance else [])

    def _reduced_result(self, failure: _Failure, clause_run: ClauseRun) -> ClauseResult:
        """A failure made small and named: where calls are slow by what was asked, if that tells."""
        slow = failure.subject.slow_calls
        told = self._of_few_calls(failure, clause_run) if slow else None
        return told or self._searched_result(failure, clause_run)

    def _searched_result(self, failure: _Failure, clause_run: ClauseRun) -> ClauseResult:
        clause, subject, kind = failure.clause, failure.subject, failure.violation.kind
        causes, chance = self._causes, None
        threaded = threads_entry(failure.violation)
        if threaded is not None and threaded["name"] == RACE:  # no smaller problem need show it
            return _as_drawn(failure, failure.violation, threaded)
        if kind in _OF_CHANCE and threaded is None:
            chance = causes.chance(failure.problem, subject, failure.fails, kind)
        if chance is not None and chance["name"] != UNORDERED and not clause.of_repetition:
            return _random_failure(failure, chance)
        ends_ranks = kind == "raised" and self.candidate.declaration.ranks is not None
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
        if self.memory is not None:
            self.memory.keep(self.candidate, clause.id, smallest.problem)
        violation = with_scale_error(smallest.violation, failure.violation)
        in_time = not clause_run.is_over
        diagnosis: list[dict[str, Any]] = []
        failing = replace(failure, problem=smallest.problem, violation=smallest.violation)
        entry = threaded or chance or causes.changed_inputs(subject, clause, failing.fails)
        if entry is not None:
            diagnosis = [entry]
        elif self._is_diagnosed(clause, kind, subject) and in_time:
            diagnosis = causes.named(subject, clause, smallest.problem, clause_run)
        elif kind == "raised" and in_time:
            diagnosis = self._of_exception(failing, clause_run)
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
        """How often the failing problem of one clause may be tried smaller."""
        tries = int(self.reductions_left * SHARE_OF_ONE_CLAUSE)
        most = TRIES_OF_SLOW_CALLS if subject.slow_calls else tries
        return min(tries, most, TRIES_OF_A_LOSS.get(kind, tries))

    def _of_few_calls(self, failure: _Failure, clause_run: ClauseRun) -> ClauseResult | None:
        """A failure named and made small by the calls that were made; None where they tell less."""
        clause, subject, found = failure.clause, failure.subject, failure.violation
        if self.candidate.kind not in ("core", "layer") or found.kind not in WRONG_ANSWERS:
            return None
        if not self.candidate.golden_known or clause_run.is_over:
            return None
        few = self._causes.from_few_calls(subject)
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
        """A diagnosis, of what nobody declared with whether the catalogue has each name."""
        reading, known = self.candidate.reading, self._causes.are_unmeant
        if reading is None:
            return diagnosis
        return [
            {**entry, "catalogued": known(str(entry["name"]), reading.meant)} for entry in diagnosis
        ]

    def _of_exception(self, failing: _Failure, clause_run: ClauseRun) -> list[dict[str, Any]]:
        """Why a call raises: for a mistake that others answer wrongly by, or for its sizes."""
        subject, problem, mistaken = failing.subject, failing.problem, []
        if self.candidate.eager is None:  # a search that broke hides no refused size
            found = self._causes.of_exception(subject, problem, clause_run)
            mistaken = [entry for entry in found if entry["name"] != UNKNOWN]
        return self._causes.refused_sizes(
            subject, problem, failing.violation, failing.asks, clause_run, mistaken
        )

    def _is_diagnosed(self, clause: Clause, kind: str, subject: Subject) -> bool:
        """Whether another way to compute attention may explain a failure, if a law's the first."""
        ranks = self.candidate.declaration.ranks is not None
        if ranks and (clause.family == "ranks" or kind == "raised"):
            return True
        first = clause.level == "MUST" and not ranks and subject not in self._causes.diagnosticians
        plain = kind in WRONG_ANSWERS and self.candidate.eager is None
        return plain and (clause.explained or first)

    def explained_by(self, failure: ClauseResult) -> str:
        """The name of another failure's mistake that makes this clause fail, too, or "".

        For failures without a name of their own, when all of them have been diagnosed.
        """
        subject = self.subject(failure.dtype, failure.device)
        problem = (failure.counterexample or {}).get("problem")
        if problem is None:
            return ""
        with torch_state.one_thread(), torch_state.neutral():
            kind = "" if failure.violation is None else failure.violation.kind
            clause = self._clauses[failure.id]
            return self._causes.follows(subject, clause, problem_from_json(problem), kind)


def _without_platform(
    clause: Clause, subject: Subject, problem: Problem
) -> tuple[str, Finding] | None:
    """What a failing example shows where torch's faults are kept away, behind what they are.

    None where there are none, or where it fails all the same: that is the candidate's.
    """
    fault = platform_fault(subject.dtype) if subject.device == "cpu" else ""
    if not fault:
        return None
    with within_each_call(Spared()):
        finding = examine(clause, subject, problem)
    if finding.violation is not None:
        return None
    return f"{BLAMED_ON_PLATFORM}{fault}; with dense copies of them the clause holds", finding


def _though_unexplained(failure: ClauseResult, explain: Callable[[], ClauseResult]) -> ClauseResult:
    """A failure made small and named; as it was found where that ends with an error of ours."""
    try:
        return explain()
    except Exception as error:  # noqa: BLE001 (a verdict stands though its cause stays unknown)
        return failure.replace(diagnosis=[lost_search_entry(fault_of(error))])


# The kinds of violation that work in another order on a device may make.
_OF_CHANCE: Final = (*WRONG_ANSWERS, "mutated", "memory")


@dataclass(frozen=True)
class _Failure:
    """A failing problem of a clause, and the result without it."""

    clause: Clause
    subject: Subject
    problem: Problem
    violation: Violation
    result: ClauseResult

    def asks(self, problem: Problem) -> tuple[str, str] | None:
        """What another problem's call does and says; None for one that cannot be asked."""
        try:
            finding = examine(self.clause, self.subject, problem)
        except UsageError:  # the declaration does not hold for it
            return None
        if finding.refused:
            return None
        violation = finding.violation
        if violation is None:
            return RIGHT, ""
        return RAISES if violation.kind == self.violation.kind else WRONG, violation.message

    def fails(self, asked: Subject) -> bool:
        """Whether a subject fails the problem."""
        return examine(self.clause, asked, self.problem).violation is not None


def _random_failure(failure: _Failure, random: dict[str, Any]) -> ClauseResult:
    """A failure of a candidate that answers at random: that is the reason, and nothing is reduced.

    The difference between two random answers is no reason.
    """
    reason = "equal calls give different answers, which says nothing of what this clause is about"
    violation = Violation(kind=failure.violation.kind, message=reason)
    return _as_drawn(failure, violation, random)


def _as_drawn(failure: _Failure, violation: Violation, entry: dict[str, Any]) -> ClauseResult:
    """A failure as it was drawn, with what it is due to."""
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
