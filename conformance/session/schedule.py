"""Divides the clauses of candidates among workers, with the results of a single worker."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, Final, Protocol

from ..base.limits import NOT_FINISHED, Deadline
from ..base.mistake import UNKNOWN, UNREPEATABLE
from ..base.results import BLAMED_ON_PLATFORM, WRONG_ANSWERS, ClauseResult
from ..errors import UsageError
from ..running.workers.messages import Loaded, Order
from ..running.workers.pool import WorkerPool
from ..running.workers.supervisor import HarnessError, OutOfTime, Supervisor, WorkerLost
from .order import steps

# In a run that stops at its first failure, the number of clauses that run whole first: they show
# most mistakes within a fifth of a second.
WHOLE_FIRST: Final = 3
# Further examples, for mistakes invisible in first examples: of the next clause, which combines all
# options and shows mistakes of two options within some dozens; of the clauses that find mistakes
# soonest; and of the remaining clauses.
_SOON: Final = 14
_MOST_OF_NEXT: Final = 48
_MORE_OF_SOON: Final = 8
_MORE: Final = 3
# With slow calls or little time, clauses take turns after the most productive steps: numbers of
# examples at which a clause yields to the next clause.
_TURNS: Final = (1, 3, 8, 24)
# Seconds of the harness for an example.
_EXAMPLE: Final = 0.005
# Clauses to run before time is estimated.
_LEAST: Final = 5


class Estimate:
    """The remaining clauses, and the durations of finished clauses.

    Durations differ a hundredfold between clauses and much less between candidates: the estimate
    for a clause is its mean on earlier candidates, or the mean of all clauses.
    """

    def __init__(self, slugs: Iterable[str], *, jobs: int = 1) -> None:
        self._left = Counter(slugs)
        self._jobs = jobs
        self._took: dict[str, list[float]] = defaultdict(list)
        self.total = self._left.total()
        self.done = 0

    def add(self, slug: str, seconds: float) -> None:
        """Count a finished clause."""
        if self._left[slug]:
            self._left[slug] -= 1
        self._took[slug].append(seconds)
        self.done += 1

    def again(self, slug: str) -> None:
        """Count a clause that has run and will run once more."""
        self._left[slug] += 1
        self.total += 1

    def seconds(self) -> float | None:
        """The remaining seconds, None before enough clauses have run."""
        if self.done < _LEAST:
            return None
        means = {slug: sum(took) / len(took) for slug, took in self._took.items()}
        every = [seconds for took in self._took.values() for seconds in took]
        mean = sum(every) / len(every)
        work = sum(many * means.get(slug, mean) for slug, many in self._left.items())
        return work / max(1, min(self._jobs, self._left.total()))


# Statuses that examples can change; further statuses are failures, or final.
_EXPLORED: Final = ("passed", "untestable")


def worth_exploring(result: ClauseResult) -> bool:
    """Whether fresh examples may change the result of a clause."""
    return result.status in _EXPLORED and result.planned is None and result.examples > 0


def combined(before: ClauseResult, more: ClauseResult) -> ClauseResult:
    """Combine the result of a clause so far with a further round's."""
    counted: dict[str, Any] = {
        **_sums(vars(before), more),
        "seconds": before.seconds + more.seconds,
        "trail": _trail(before, more),
        "planned": before.planned,
    }
    if more.status in ("failed", "error"):
        return more.replace(**counted)
    if before.status == "untestable" and more.status == "passed":
        return before.replace(**counted, status="passed", reason="")
    return before.replace(**counted)


def _sums(before: Mapping[str, Any], more: ClauseResult) -> dict[str, Any]:
    margins = [margin for margin in (before["margin"], more.margin) if margin is not None]
    return {
        "examples": before["examples"] + more.examples,
        "binding": before["binding"] + more.binding,
        "margin": max(margins, default=None),
    }


def _trail(before: ClauseResult, more: ClauseResult) -> dict[str, Any] | None:
    """Add later rounds, whose examples only this shard draws, to a shard's trail."""
    if before.trail is None:
        return None
    sums = before.trail.get("explored") or {"examples": 0, "binding": 0, "margin": None}
    explored = {**_sums(sums, more), "failed": more.status == "failed"}
    return {**before.trail, "explored": explored}


CONTRADICTIONS: Final = "conformance.identification.contradictions:job"
TROUBLE: Final = "conformance.running.workers.planning:trouble_job"
TAMPERED: Final = "conformance.running.workers.planning:tampered_job"
OF_TAMPERING: Final = "state.untampered"
EXPLAINED: Final = "conformance.running.workers.planning:explained_job"
_LOST: Final = ("hung", "crashed")
# From this many candidates per worker on, a candidate has a single worker; else workers share its
# clauses.
_CANDIDATES_A_WORKER: Final = 2

# A clause's number and result, explanations of failures by number, or a candidate's warnings.
ChunkReport = tuple[int, ClauseResult] | dict[int, str] | list[str]
JudgeResult = Callable[[Loaded, ClauseResult], ClauseResult]


def ignore_end(_index: int) -> None:
    """Do nothing when the last clause of a candidate has been run."""


class ShowProgress(Protocol):
    """Shows a run's progress, with the estimated seconds left, if known."""

    def __call__(self, activity: str, done: int, total: int, left: float | None = None, /) -> None:
        """Show it."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Clauses of one candidate, by their places in its plan.

    explains: the clauses are failures of a deferred run, to be reduced and diagnosed.
    ends: the chunk ends the candidate: contradictions of its declaration are examined.
    before: the candidate's results so far by place, failures included, where needed.
    share: the chunk's share of the remaining time at its beginning, under a limit.
    """

    index: int
    numbers: tuple[int, ...]
    order: Order = field(default_factory=Order)
    explains: bool = False
    ends: bool = False
    before: Mapping[int, ClauseResult] = field(default_factory=dict)
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ChunkRun:
    """Runs, or explains, the clauses of a chunk with a worker, in a thread or on another machine.

    ``judge``, ``warns``, ``exitfirst`` and ``in_turn`` are those of the schedule; with
    ``remembers`` there is a database of failures.
    """

    loaded: Sequence[Loaded]
    judge: JudgeResult
    warns: tuple[str, ...]
    exitfirst: bool
    in_turn: bool
    remembers: bool

    def __call__(
        self, supervisor: Supervisor, chunk: Chunk, stopping: Callable[[], bool]
    ) -> Iterator[ChunkReport]:
        """Yield each clause's number and result; for the last chunk also explanations, warnings."""
        if chunk.share == 1.0 or supervisor.deadline is None:
            yield from self._reports(supervisor, chunk, stopping)
            return
        whole = supervisor.deadline
        supervisor.limit_to(whole.part(chunk.share))
        try:
            yield from self._reports(supervisor, chunk, stopping)
        finally:
            supervisor.limit_to(whole)

    def _reports(
        self, supervisor: Supervisor, chunk: Chunk, stopping: Callable[[], bool]
    ) -> Iterator[ChunkReport]:
        """Yield the reports of a chunk within its time.

        On Ctrl-C the failure being explained is handed over as found, without a name.
        """
        own = dict(chunk.before)
        for number, result in self._run(supervisor, chunk):
            if stopping():
                if result.status == "failed":
                    yield number, result
                return
            own[number] = result
            yield number, result
            if self.exitfirst and self.is_red(chunk.index, result):
                break
        if chunk.ends:
            yield self._explained(supervisor, chunk.index, own, stopping)
            yield self._warnings(supervisor, chunk.index, list(own.values()), stopping)

    def is_red(self, index: int, result: ClauseResult) -> bool:
        """Tell whether a result ends a run that stops at the first failure."""
        judged = self.judge(self.loaded[index], result)
        return judged.status == "error" or (judged.status, judged.level) == ("failed", "MUST")

    def _run(self, supervisor: Supervisor, chunk: Chunk) -> Iterator[tuple[int, ClauseResult]]:
        index = chunk.index
        if chunk.explains:
            for number in chunk.numbers:
                yield number, supervisor.explain(index, number, chunk.before[number])
            return
        if not chunk.order.round and (self.exitfirst or takes_turns(self, index)):
            yield from self._in_stages(supervisor, chunk)
            return
        results = supervisor.run_candidate(index, chunk.numbers, chunk.order)
        yield from zip(chunk.numbers, results, strict=False)

    def _in_stages(
        self, supervisor: Supervisor, chunk: Chunk
    ) -> Iterator[tuple[int, ClauseResult]]:
        """Yield results stage by stage; in the end every clause has run all examples.

        No example is repeated. A clause laid aside reports its progress, except in a run that stops
        at the first failure.
        """
        waiting: dict[int, ClauseResult] = {}
        done: set[int] = set()
        asked: list[tuple[int, int | None]] = []

        def asking() -> Iterator[tuple[int, Order]]:
            for numbers, most in self._stages(chunk):
                for number in numbers:
                    had = waiting[number].examples if number in waiting else 0
                    if number not in done and (most is None or had < most):
                        asked.append((number, most))
                        yield number, replace(chunk.order, most=most)

        for result in supervisor.run_each(chunk.index, asking()):
            number, most = asked.pop()
            together = _together(waiting.get(number), result)
            if most is None or result.planned is None:
                done.add(number)
                yield number, together
                continue
            waiting[number] = together
            if not self.exitfirst:
                yield number, together.replace(reason=_so_far(together))

    def _stages(self, chunk: Chunk) -> Iterator[tuple[Sequence[int], int | None]]:
        """Yield clauses by number, with the examples after which they are laid aside.

        Most mistakes show at the first example of a clause, and one example of every clause takes
        as long as all examples of a few clauses. For slow calls the order maximises findings per
        call.
        """
        planned = self.loaded[chunk.index].planned
        asked = [number for number in chunk.numbers if not planned[number].reason]
        ends = [number for number in asked if planned[number].level == "MUST"]
        if takes_turns(self, chunk.index):
            own = [(planned[number].id, number) for number in ends]
            for slug, most in steps():
                yield [number for name, number in own if name == slug], most
            for most in _TURNS:
                yield ends if self.exitfirst else [*dict.fromkeys([*ends, *asked])], most
        else:
            whole, broad = ends[:WHOLE_FIRST], ends[WHOLE_FIRST:]
            soon, later = broad[1:_SOON], broad[_SOON:]
            yield from ((whole, None), (broad, 1), (broad[:1], _MOST_OF_NEXT))
            yield from ((soon, _MORE_OF_SOON), (later, _MORE))
        yield chunk.numbers, None

    def _explained(
        self,
        supervisor: Supervisor,
        index: int,
        results: Mapping[int, ClauseResult],
        stopping: Callable[[], bool],
    ) -> dict[int, str]:
        """Return the mistakes of other failures that also explain unnamed failures."""
        failed = {number: one for number, one in results.items() if one.status == "failed"}
        named = any(map(_is_named, failed.values()))
        if not named and not any(one.diagnosis for one in failed.values()):
            return {}
        # If no failure has a name, the examined ones need not be asked again.
        asked = {n: one for n, one in failed.items() if not (_is_named if named else _is_told)(one)}
        unnamed = [number for number, one in asked.items() if _may_follow(one)]
        if not unnamed or supervisor.is_over or stopping():
            return {}
        with contextlib.suppress(WorkerLost, OutOfTime, UsageError, HarnessError):
            entries = [failed[number].as_json() for number in unnamed]
            names = supervisor.perform(index, EXPLAINED, entries)
            told = any(_is_told(one) and not _is_named(one) for one in failed.values())
            pairs = zip(unnamed, names, strict=True)
            # UNKNOWN explains undiagnosed failures only beside a failure diagnosed without a name.
            return {
                number: name
                for number, name in pairs
                if name and (name != UNKNOWN or (told and not _is_told(failed[number])))
            }
        return {}

    def _warnings(
        self,
        supervisor: Supervisor,
        index: int,
        results: Sequence[ClauseResult],
        stopping: Callable[[], bool],
    ) -> list[str]:
        """Return the notes on loading, contradictions, tampering, and the database.

        If a MUST is not met, the declaration may contradict the candidate's behaviour.
        """
        loaded = self.loaded[index]
        judged = [self.judge(loaded, result) for result in results]
        unmet = [
            result for result in judged if result.level == "MUST" and result.status in self.warns
        ]
        may_contradict = unmet and not any(map(_is_lost, unmet)) and not self.exitfirst
        names = [CONTRADICTIONS] if may_contradict else []
        names += [TROUBLE] if self.remembers else []
        watched = any(planned.id == OF_TAMPERING for planned in loaded.planned)
        names += [] if watched else [TAMPERED]
        blamed = (each.reason for each in results if each.reason.startswith(BLAMED_ON_PLATFORM))
        warnings = [*loaded.notes, *dict.fromkeys(blamed)]
        for name in names:
            if not supervisor.is_over and not stopping():
                # The verdict stands without these warnings.
                with contextlib.suppress(WorkerLost, OutOfTime, UsageError, HarnessError):
                    warnings += supervisor.perform(index, name)
        return warnings


def _so_far(result: ClauseResult) -> str:
    """Return the reason of a clause laid aside, in case the run ends meanwhile."""
    count = f"{result.examples} of about {result.planned} examples"
    return f"{NOT_FINISHED}after {count}, none of which failed"


def takes_turns(run: ChunkRun | Schedule, index: int) -> bool:
    """Tell whether a candidate's clauses take turns: if requested, or as its calls are slow.

    A quick candidate's first failure is found sooner by stages.
    """
    return run.loaded[index].is_slow or (run.in_turn and not run.exitfirst)


def _together(before: ClauseResult | None, result: ClauseResult) -> ClauseResult:
    """Return the result of a clause laid aside once, with the time of both parts.

    If the run's time was up meanwhile, the first part may hold more examples.
    """
    if before is None:
        return result
    latest = result if result.examples >= before.examples else before
    return latest.replace(seconds=before.seconds + result.seconds)


@dataclass(kw_only=True)
class Schedule:
    """A run of every clause of the loaded candidates, readable at any time.

    ``judge`` applies expected failures to a result. ``warns``: the statuses of a MUST that start
    the search for contradictions: a shard has only a part of the examples. ``ended`` is called with
    a candidate's index after the candidate's last clause. Clauses in ``first`` are run first, in
    this order. With ``exitfirst`` nothing begins after a failed MUST. With ``in_turn`` all clauses
    have one example before any has many, as time is short.
    """

    pool: WorkerPool
    loaded: Sequence[Loaded]
    judge: JudgeResult
    progress: ShowProgress
    ended: Callable[[int], None] = ignore_end
    jobs: int = 1
    deadline: Deadline | None = None
    explores: bool = False
    warns: tuple[str, ...] = ("failed", "untestable")
    first: tuple[str, ...] = ()
    exitfirst: bool = False
    in_turn: bool = False
    remembers: bool = False
    results: list[dict[int, ClauseResult]] = field(init=False)
    warnings: dict[int, list[str]] = field(init=False, default_factory=dict)
    rounds: int = field(init=False, default=0)
    explored: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.results = [{} for _ in self.loaded]
        self._again: set[int] = set()
        self._stopped = False
        self._chunk_run = ChunkRun(
            loaded=self.loaded,
            judge=self.judge,
            warns=self.warns,
            exitfirst=self.exitfirst,
            in_turn=self.in_turn,
            remembers=self.remembers,
        )
        self._estimate = Estimate(())

    def results_of(self, index: int) -> list[ClauseResult]:
        """The results of a candidate, in the order of its plan."""
        return [self.results[index][number] for number in sorted(self.results[index])]

    def run(self) -> None:
        """Run it all; an exception leaves the results so far."""
        candidates = range(len(self.loaded))
        whole = (
            self.jobs == 1 or self.exitfirst or len(self.loaded) >= _CANDIDATES_A_WORKER * self.jobs
        )
        slugs = [slug for index in candidates for slug in self._applicable(index).values()]
        self._estimate = Estimate(slugs, jobs=self.jobs)
        self.pool.announce_failures(self._found)
        if whole:
            self._work(self._sharing([self._whole(index) for index in candidates]))
        else:
            self._work([chunk for index in candidates for chunk in self._split(index)])
            self._work([self._second(index) for index in candidates])
        while self.explores and not self._stopped and self.deadline and self.deadline.left() > 0.0:
            if not self._explore(whole=whole):
                return

    def _sharing(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return whole candidates with shares of the time, in proportion to all remaining needs.

        The smallest need comes first: unused time benefits the later candidates.
        """
        if self.deadline is None or len(chunks) == 1:
            return chunks
        needs = {chunk.index: self._need(chunk.index) for chunk in chunks}
        ordered = sorted(chunks, key=lambda chunk: needs[chunk.index])
        left = [sum(needs[chunk.index] for chunk in ordered[n:]) for n in range(len(ordered))]
        return [
            replace(chunk, share=min(1.0, self.jobs * needs[chunk.index] / most))
            for chunk, most in zip(ordered, left, strict=True)
        ]

    def _need(self, index: int) -> float:
        """Estimate the seconds for one example of each clause."""
        return (1 + len(self._applicable(index))) * (_EXAMPLE + self.loaded[index].call_seconds)

    def _work(self, chunks: list[Chunk]) -> None:
        if chunks:
            self.pool.work(chunks, self._chunk_run, self._receive, admits=self._admits)

    def _applicable(self, index: int) -> dict[int, str]:
        planned = enumerate(self.loaded[index].planned)
        return {number: clause.id for number, clause in planned if not clause.reason}

    def _whole(self, index: int) -> Chunk:
        planned = self.loaded[index].planned
        place = {slug: number for number, slug in enumerate(dict.fromkeys(self.first))}
        ordered = sorted(range(len(planned)), key=lambda n: place.get(planned[n].id, len(place)))
        return Chunk(index=index, numbers=tuple(ordered), ends=True)

    def _split(self, index: int) -> Iterator[Chunk]:
        """Yield a chunk for each family, dtype and device, sharing goldens; failures wait."""
        planned = self.loaded[index].planned
        groups = groupby(range(len(planned)), key=lambda n: (*planned[n].place, planned[n].family))
        parts = [list(numbers) for _, numbers in groups]
        if takes_turns(self, index):  # every worker has separate clauses
            parts = [[*chain(*parts[first :: self.jobs])] for first in range(self.jobs)]
        for numbers in filter(None, parts):
            yield Chunk(index=index, numbers=tuple(numbers), order=Order(deferred=True))

    def _second(self, index: int) -> Chunk:
        """Return the clauses for a single worker, as results depend on earlier ones.

        Failures share the tries of their reductions; all clauses of a candidate that hangs or dies
        are repeated, since the candidate is given up after a while.
        """
        if index in self._again:
            for slug in self._applicable(index).values():
                self._estimate.again(slug)
            return self._whole(index)
        own = self.results[index]
        failures = tuple(number for number in sorted(own) if own[number].status == "failed")
        return Chunk(index=index, numbers=failures, explains=True, ends=True, before=dict(own))

    def _explore(self, *, whole: bool) -> bool:
        """Run another round of fresh examples; False if no clause was worth it."""
        self.rounds += 1
        chunks = []
        for index, own in enumerate(self.results):
            for chunk in [self._whole(index)] if whole else self._split(index):
                numbers = tuple(n for n in chunk.numbers if n in own and worth_exploring(own[n]))
                if numbers:
                    order = Order(round=self.rounds)
                    chunks.append(Chunk(index=index, numbers=numbers, order=order))
        slugs = [self.loaded[chunk.index].planned[n].id for chunk in chunks for n in chunk.numbers]
        self._estimate = Estimate(slugs, jobs=self.jobs)
        self._work(chunks)
        return bool(chunks)

    def _admits(self, chunk: Chunk, report: ChunkReport | None) -> bool:
        """Tell whether a report counts; a candidate lost meanwhile is run again as a whole."""
        if report is None:
            return not self._stopped
        if not isinstance(report, tuple):
            return True
        if self._stopped or (chunk.order.deferred and chunk.index in self._again):
            return False
        if self.exitfirst and self._chunk_run.is_red(chunk.index, report[1]):
            self._stopped = True
        return True

    @property
    def has_stopped(self) -> bool:
        """Whether the run has ended with a failure, as ``exitfirst`` wants it."""
        return self._stopped

    def _receive(self, chunk: Chunk, report: ChunkReport) -> None:
        if isinstance(report, list):
            self.warnings[chunk.index] = report
            self.ended(chunk.index)
            return
        if isinstance(report, dict):
            own = self.results[chunk.index]
            own.update({n: own[n].replace(explained_by=name) for n, name in report.items()})
            return
        number, result = report
        own, loaded = self.results[chunk.index], self.loaded[chunk.index]
        if chunk.order.round:
            self.explored += result.examples
            own[number] = combined(own[number], result)
        elif number not in own or result.examples or not self._is_over:
            own[number] = result
        if chunk.order.deferred and _is_lost(result):
            self._again.add(chunk.index)
        is_whole = result.planned is None or self._is_over
        if not loaded.planned[number].reason and not chunk.explains and is_whole:
            self._estimate.add(result.id, result.seconds)
        self._show(chunk.order.round, f"{loaded.name} {result.id}")

    def _found(self, loaded: Loaded, slug: str) -> None:
        self._show(0, f"{loaded.name} fails {slug}: looking for the cause")

    def _show(self, number: int, activity: str) -> None:
        """Show the run's progress and the time left: estimated, and never beyond the limit."""
        estimate, left = self._estimate, self._estimate.seconds()
        if self.deadline is not None:
            left = self.deadline.left() if left is None else min(left, self.deadline.left())
        shown = f"round {number + 1}: {activity}" if number else activity
        self.progress(shown, estimate.done, estimate.total, left)

    @property
    def _is_over(self) -> bool:
        return self.deadline is not None and self.deadline.left() == 0.0


def _is_named(result: ClauseResult) -> bool:
    """Tell whether a failure is explained; failures that do not repeat may follow from mistakes."""
    return any(entry["name"] not in (UNKNOWN, UNREPEATABLE) for entry in result.diagnosis)


def _is_told(result: ClauseResult) -> bool:
    return bool(result.diagnosis)


# Failures that may follow from another's mistake: wrong answers, those of another type or
# without a gradient, and exceptions.
_MAY_FOLLOW: Final = (*WRONG_ANSWERS, "type", "raised")


def _may_follow(result: ClauseResult) -> bool:
    return result.violation is not None and result.violation.kind in _MAY_FOLLOW


def _is_lost(result: ClauseResult) -> bool:
    return result.violation is not None and result.violation.kind in _LOST
