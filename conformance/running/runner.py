"""Runs the clauses of one candidate: plan, examples, reduction, result."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..adapters.compiled import profile_for
from ..base.profile import WHOLE, Profile, Shard
from ..base.results import ClauseResult, Violation
from ..calls import torch_state
from ..calls.arrays import no_such_numbers
from ..calls.devices import canonical, why_absent
from ..calls.recording import Recording
from ..clauses.operators import asked_eagerly
from ..clauses.registry import Clause, all_clauses
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..diagnosis import Diagnostician
from ..diagnosis.exports.blame import Blamer
from ..diagnosis.mistakes import named_mistakes
from ..diagnosis.randomness import random_entry
from ..problems.pool import Pool
from ..problems.problem import Problem, problem_from_json
from ..shrinking.counterexample import describe
from ..shrinking.smallest import Smallest, examine, smallest_failure
from .clause_problems import ClauseProblems, FailureMemory
from .clause_run import UNLIMITED, ClauseRun, PlannedClause
from .tally import Tally, Terms

OnExample = Callable[[dict[str, Any]], None]
# Of the reductions that a profile leaves, the part that the next failing clause may use.
SHARE_OF_ONE_CLAUSE = 0.3
# What takes a process with it, or much memory, costs seconds a try: few to make it small, none for
# what hangs.
TRIES_OF_A_LOSS = {"hung": 0, "crashed": 8, "memory": 2}
# The kinds of failure that another point of the semantics may explain.
DIAGNOSED = ("value", "shape", "finite")


class CandidateRun:
    """One candidate under one profile and seed; its clauses share pools, goldens and bounds.

    Without ``explain`` a failure is reported as it was found: not made small, and not named.
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
        self._leading = ""
        self.pool = self._pool()
        self.reductions_left = self.profile.reductions
        self._reduced: dict[Problem, None] = {}  # in order, each once
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._diagnosticians: dict[Subject, Diagnostician] = {}
        self._random: dict[Subject, dict[str, Any] | None] = {}
        self._blamers: dict[Subject, Blamer] = {}
        self._clauses = {clause.id: clause for clause in all_clauses()}
        self._mistakes = named_mistakes() if explain else ()

    @property
    def subjects(self) -> list[Subject]:
        """The subjects made so far; their clocks say where the time went."""
        return list(self._subjects.values())

    def forget(self) -> None:
        """Let go of problems, goldens and answers: what is asked later makes them anew."""
        self.pool = self._pool()
        self._subjects.clear()
        self._diagnosticians.clear()
        self._random.clear()
        self._blamers.clear()

    def _pool(self) -> Pool:
        return Pool(self.candidate, self.profile, self.seed, leading=self._leading)

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
        selected = [clause for clause in self._clauses.values() if self._selects(clause.id)]
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
                    or asked_eagerly(self.candidate, clause.id)
                    or clause.not_applicable(self.candidate.on(device))
                ),
            )
            for device in self.devices
            for dtype in self.dtypes
            for clause in selected
        ]

    def _selects(self, slug: str) -> bool:
        wanted = not self.only or any(fnmatchcase(slug, glob) for glob in self.only)
        return wanted and not any(fnmatchcase(slug, glob) for glob in self.skip)

    def run(
        self,
        planned: PlannedClause,
        on_example: OnExample | None = None,
        *,
        asking: ClauseRun = UNLIMITED,
    ) -> ClauseResult:
        """Run one clause; its result counts fewer examples than planned where the time was up.

        ``on_example`` gets each problem (plain data) before it is tried.
        """
        if on_example is not None:
            hear = on_example
            asking = dataclasses.replace(asking, on_example=lambda problem, _tally: hear(problem))
        return self._guarded(planned, partial(self._run, self._clauses[planned.id], asking=asking))

    def explain_failure(
        self, planned: PlannedClause, found: ClauseResult, asking: ClauseRun = UNLIMITED
    ) -> ClauseResult:
        """Make a failure small and name it, which a deferred run has left as it was found.

        What does not fail again stays as it was found.
        """
        return self._guarded(planned, partial(self._explained, found=found, asking=asking))

    def _guarded(
        self, planned: PlannedClause, work: Callable[[ClauseResult], ClauseResult]
    ) -> ClauseResult:
        result = ClauseResult(
            id=planned.id,
            family=planned.family,
            level=planned.level,
            status="not-applicable",
            reason=planned.reason,
            dtype=planned.dtype,
            device=planned.device,
        )
        if planned.reason:
            return result
        start = time.perf_counter()
        try:
            with one_thread(), torch_state.neutral():
                result = work(result)
        except Exception as error:  # noqa: BLE001 (the harness' own fault is a status, not a crash)
            result = result.replace(status="error", reason=_own_fault(error))
        return result.replace(seconds=result.seconds + time.perf_counter() - start)

    def subject(self, dtype: str, device: str = "cpu") -> Subject:
        """The candidate under test in one dtype on one device."""
        place = dtype, device
        if place not in self._subjects:
            self._subjects[place] = Subject(self.candidate, dtype, device)
        return self._subjects[place]

    def _run(self, clause: Clause, result: ClauseResult, *, asking: ClauseRun) -> ClauseResult:
        subject = self.subject(result.dtype, result.device)
        tally = Tally(terms=self._terms(clause), shard=self.shard)
        asked = ClauseProblems(clause, subject, pool=self.pool, tally=tally, memory=self.memory)
        for problem in asked.of_round(asking.round):
            if asking.is_over:
                return self._counted(clause, result, tally, asking).replace(
                    status="untestable", planned=max(tally.planned, tally.examples + 1)
                )
            asking.on_example(problem.as_json(), tally)
            finding = examine(clause, subject, problem)
            tally.add(finding)
            if finding.violation is not None:
                tally.failed = True
                counted = self._counted(clause, result, tally, asking)
                return self._failed(clause, subject, problem, finding.violation, counted, asking)
            asked.passed(problem)
        status, reason = tally.outcome()
        return self._counted(clause, result, tally, asking).replace(status=status, reason=reason)

    def _terms(self, clause: Clause) -> Terms:
        return Terms(
            counterfactual=clause.counterfactual or "",
            subtle=clause.subtle,
            excused=clause.subtle or bool(self.candidate.declaration.precision),
        )

    def _counted(
        self, clause: Clause, result: ClauseResult, tally: Tally, asking: ClauseRun
    ) -> ClauseResult:
        numbers = () if asking.round else tally.asked
        return result.replace(
            coverage=self.pool.coverage(clause.space, result.dtype, numbers),
            examples=tally.examples,
            binding=tally.binding,
            margin=tally.margin,
            trail=tally.trail(),
            reason="",
        )

    def _failed(
        self,
        clause: Clause,
        subject: Subject,
        problem: Problem,
        broken: Violation,
        result: ClauseResult,
        asking: ClauseRun,
    ) -> ClauseResult:
        """Reduce the failing problem and report the smallest one found."""
        if self.memory is not None:
            self.memory.keep(self.candidate, clause.id, problem)
        found = result.replace(status="failed", reason=broken.message, violation=broken)
        if not self.explain:
            return found
        found = found.replace(counterexample={"problem": problem.as_json()})
        if asking.deferred:
            return found
        asking.on_failure(found)
        return self._smaller(clause, subject, problem, broken, found, asking)

    def _explained(
        self, planned: ClauseResult, *, found: ClauseResult, asking: ClauseRun
    ) -> ClauseResult:
        clause = self._clauses[planned.id]
        subject = self.subject(planned.dtype, planned.device)
        known = found.counterexample or {}
        problem = problem_from_json(known["problem"])
        asking.on_failure(found)
        asking.on_example(problem.as_json(), Tally())
        broken = examine(clause, subject, problem).violation
        if broken is None:
            return found
        return self._smaller(clause, subject, problem, broken, found, asking)

    def _smaller(
        self,
        clause: Clause,
        subject: Subject,
        problem: Problem,
        broken: Violation,
        result: ClauseResult,
        asking: ClauseRun,
    ) -> ClauseResult:
        kind = broken.kind
        random = self._randomness(subject, problem) if kind in DIAGNOSED else None
        if random is not None and not clause.of_repetition:
            return _said_of_random(clause, subject, problem, broken, result, random)
        tries = int(self.reductions_left * SHARE_OF_ONE_CLAUSE)
        tally = Tally(examples=result.examples)

        def on_example(smaller: dict[str, Any]) -> None:
            asking.on_example(smaller, tally)

        smallest = smallest_failure(
            clause,
            subject,
            problem,
            broken,
            tries=min(tries, TRIES_OF_A_LOSS.get(kind, tries)),
            known=tuple(self._reduced),
            on_example=on_example,
            until=asking.until,
        )
        self.reductions_left -= smallest.tries
        self._reduced[smallest.problem.replace(overrides=None)] = None
        if self.memory is not None:
            self.memory.keep(self.candidate, clause.id, smallest.problem)
        violation = _with_scale_error(smallest.violation, broken)
        in_time = not asking.is_over
        named = clause.explained and kind in DIAGNOSED and self.candidate.eager is None
        return result.replace(
            status="failed",
            reason=violation.message,
            violation=violation,
            counterexample=describe(clause.id, subject, smallest),
            diagnosis=(
                [random]
                if random is not None
                else self._diagnosis(subject, clause, smallest.problem)
                if named and in_time
                else []
            ),
            blame=self._blame(subject, clause, smallest, on_example) if in_time else None,
        )

    def _randomness(self, subject: Subject, problem: Problem) -> dict[str, Any] | None:
        """What makes the candidate answer at random, looked for once; None for one that does not.

        Nothing else can be said of such answers: laws that compare two of them would blame whatever
        differs between the two calls.
        """
        if subject not in self._random:
            self._random[subject] = random_entry(subject, problem)
        return self._random[subject]

    def _diagnosis(
        self, subject: Subject, clause: Clause, problem: Problem
    ) -> list[dict[str, Any]]:
        """What explains a failure; the search is made once a candidate and dtype."""
        known = self._diagnosticians.get(subject)
        if known is None:
            known = self._diagnosticians[subject] = Diagnostician(subject, self._mistakes)
        return known.explain(clause, problem)

    def _blame(
        self, subject: Subject, clause: Clause, smallest: Smallest, on_example: OnExample
    ) -> dict[str, Any] | None:
        """Which step of an export is to blame for a graph's failure; None for what is no graph."""
        if self.candidate.graph is None:
            return None
        known = self._blamers.get(subject)
        if known is None:
            known = self._blamers[subject] = Blamer(subject, self.candidate.graph)

        def alive() -> None:  # each step has a time limit of its own
            on_example(smallest.problem.as_json())

        try:
            return known.blame(clause.id, smallest.violation, smallest.recording, alive)
        except Exception as error:  # noqa: BLE001 (a verdict stands though nobody can be blamed)
            return {"step": "", "stage": "", "text": f"nobody can be blamed: {_own_fault(error)}"}


def _said_of_random(
    clause: Clause,
    subject: Subject,
    problem: Problem,
    broken: Violation,
    result: ClauseResult,
    random: dict[str, Any],
) -> ClauseResult:
    """A failure of a candidate that answers at random: that is the reason, and nothing is reduced.

    What the clause saw between two random answers is no reason.
    """
    told = "equal calls give different answers, which says nothing of what this clause asks"
    violation = Violation(kind=broken.kind, message=told)
    shown = Smallest(
        problem=problem, violation=violation, recording=Recording(), tries=0, repeated=False
    )
    return result.replace(
        status="failed",
        reason=told,
        violation=violation,
        counterexample=describe(clause.id, subject, shown),
        diagnosis=[random],
    )


def why_unusable(candidate: Candidate, device: str) -> str:
    """Why a candidate cannot be judged on a device, or ""."""
    reason = why_absent(device)
    if reason:
        return f"the device {device} is not here: {reason}"
    if device == "cpu":
        return ""
    if candidate.graph is not None:
        return f"onnxruntime runs it on the CPU, not on {device}"
    if candidate.declaration.arrays != "torch":
        return f"its {candidate.declaration.arrays} arrays are made on the CPU, not on {device}"
    return ""


def _with_scale_error(reduced: Violation, first: Violation) -> Violation:
    """A reduced violation with the scale error of the first: few elements fit any scale."""
    fitted = first.measured.get("scale_error")
    if fitted is None or "scale_error" in reduced.measured:
        return reduced
    told = f"; the unreduced example fits a scale with a relative error of {fitted:+.3g}"
    return dataclasses.replace(
        reduced,
        message=reduced.message + told,
        measured={**reduced.measured, "scale_error": fitted},
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: tiny tensors lose by more, and bits repeat."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _own_fault(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = str(error).strip().splitlines()[:1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"the harness failed: {type(error).__name__}: {line[0] if line else ''} ({where})"
