"""Runs the clauses of one candidate: plan, examples, reduction, result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from ..adapters.compiled import profile_for
from ..base.limits import is_slow
from ..base.profile import WHOLE, Profile, Shard
from ..base.results import BLAMED_ON_PLATFORM, ClauseResult
from ..base.selection import is_selected
from ..calls import torch_state
from ..calls.arrays import no_such_numbers
from ..calls.calling import within_each_call
from ..calls.devices import canonical, why_unusable
from ..calls.integrity import Seal, seal_as_loaded
from ..calls.platform_faults import Spared, platform_fault
from ..clauses.operators import left_to_eager
from ..clauses.registry import Clause, Finding, all_clauses
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..declare.declaration import WHOLE_MODEL
from ..errors import UsageError, own_fault
from ..problems.pool import Pool
from ..problems.problem import Problem, problem_from_json
from .clause_problems import ClauseProblems, FailureMemory
from .clause_run import UNLIMITED, ClauseRun, PlannedClause
from .shrinking.smallest import (
    Failure,
    examine,
)
from .tally import Tally, Terms

if TYPE_CHECKING:
    from .explainer import Explainer

OnExample = Callable[[dict[str, Any]], None]
# Runs of a warm process: their problems and results are reused for similar candidates.
PREPARED: Final[list[CandidateRun]] = []


class CandidateRun:
    """One candidate under one profile and seed; clauses share pools, goldens and bounds.

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
        # Seconds of a trial call; 0.0 without one.
        self.call_seconds = 0.0
        self._leading = ""
        self.pool = self._pool()
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._explained_by: Explainer | None = None
        # Clauses laid aside: their problems, the remaining ones, and the counts so far.
        self._aside: dict[str, tuple[ClauseProblems, Iterator[Problem], Tally]] = {}
        self._clauses = {clause.id: clause for clause in all_clauses()}

    @property
    def subjects(self) -> list[Subject]:
        """The subjects made so far; their clocks show the time spent."""
        return list(self._subjects.values())

    def forget(self) -> None:
        """Drop problems, goldens and answers, to be made again by later clauses."""
        self.pool = self._pool()
        self._subjects.clear()
        if self._explained_by is not None:
            self._explained_by.causes.forget()
        self._aside.clear()

    def _pool(self) -> Pool:
        pool = Pool(self.candidate, self.profile, self.seed, leading=self._leading)
        for known in filter(self._is_like, PREPARED):
            pool.share(known.pool)
        return pool

    def planned(self) -> list[PlannedClause]:
        """Return every selected clause in every dtype and on every device, in order.

        Clauses that are not applicable are included, for example all clauses of an absent device.
        """
        with torch_state.neutral():
            plan = self._plan()
        # The same dtype gets all the examples, whichever part of the plan runs here.
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
        """Run one clause; an unfinished result counts fewer examples than planned.

        A clause is unfinished after the deadline or when laid aside. ``on_example`` gets every
        problem (plain data) before it is tried.
        """
        if on_example is not None:
            call = on_example
            clause_run = replace(clause_run, on_example=lambda problem, _tally: call(problem))
        return self._guarded(planned, partial(self._run, self._clauses[planned.id], clause_run))

    def explain_failure(
        self, planned: PlannedClause, failure: ClauseResult, clause_run: ClauseRun = UNLIMITED
    ) -> ClauseResult:
        """Reduce and diagnose the failure of a deferred run.

        A failure that does not recur is returned unchanged.
        """
        if not self._is_explained(failure):
            return failure
        explained = partial(self._explained, failure, clause_run)
        return self._guarded(
            planned,
            lambda result: self._explainer().though_unexplained(failure, lambda: explained(result)),
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
            subject = Subject(self.candidate, dtype, device, sealed=self.sealed, slow_calls=slow)
            self._subjects[place] = subject
            for known in filter(self._is_like, PREPARED):
                self._subjects[place].share(known.subject(dtype, device))
        return self._subjects[place]

    def _is_like(self, other: CandidateRun) -> bool:
        """Tell whether another run has the same problems and goldens: equally declared cores."""
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
                own = _examine_without_faults(clause, subject, problem)
                blamed, finding = (blamed, finding) if own is None else own
            tally.add(finding)
            if finding.violation is not None:
                tally.failed = True
                failure = Failure(clause, subject, problem, finding.violation, covered())
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
        """Return a clause's problems in a round, their iterator, and an empty tally."""
        terms = Terms(
            counterfactual=clause.counterfactual or "",
            subtle=clause.subtle,
            excused=clause.subtle or bool(self.candidate.declaration.precision),
        )
        tally = Tally(terms=terms, shard=self.shard)
        problems = ClauseProblems(clause, subject, pool=self.pool, tally=tally, memory=self.memory)
        return problems, problems.problems_of_round(number), tally

    def _failed(self, failure: Failure, clause_run: ClauseRun) -> ClauseResult:
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
        explainer = self._explainer()
        return explainer.though_unexplained(result, lambda: explainer.result(failure, clause_run))

    def _is_explained(self, failure: ClauseResult) -> bool:
        """Tell whether to reduce and diagnose: SHOULD failures only of declared candidates.

        What reading found no name for gets none here.
        """
        reading = self.candidate.reading
        if reading is None:
            return self.explain
        in_vain = reading.unnamed and self._clauses[failure.id].needs_golden
        return self.explain and failure.level == "MUST" and not in_vain

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
        failure = Failure(clause, subject, problem, known, result)
        explainer = self._explainer()
        if violation is not None:
            return explainer.result(failure, clause_run)
        return explainer.explain_chance(failure)

    def _explainer(self) -> Explainer:
        """Return the explainer, imported at the first failure: most runs need none."""
        if self._explained_by is None:
            from .explainer import Explainer  # noqa: PLC0415 (most runs need none of it)

            self._explained_by = Explainer(
                self.candidate, reductions=self.profile.reductions, memory=self.memory
            )
        self._explained_by.causes.call_seconds = self.call_seconds
        return self._explained_by

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
            causes = self._explainer().causes
            return causes.follows(subject, clause, problem_from_json(problem), kind)


def _examine_without_faults(
    clause: Clause, subject: Subject, problem: Problem
) -> tuple[str, Finding] | None:
    """Examine a failing example again with torch's platform faults avoided.

    Returns the fault's description and the finding; None without faults, or if the candidate still
    fails.
    """
    fault = platform_fault(subject.dtype) if subject.device == "cpu" else ""
    if not fault:
        return None
    with within_each_call(Spared()):
        finding = examine(clause, subject, problem)
    if finding.violation is not None:
        return None
    return f"{BLAMED_ON_PLATFORM}{fault}; with dense copies of them the clause holds", finding
