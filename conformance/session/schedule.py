"""Spreads the clauses of candidates over workers; the results are those of one worker, in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol

from ..base.limits import Deadline
from ..base.results import ClauseResult
from ..errors import UsageError
from ..running.workers.messages import Loaded, Order
from ..running.workers.pool import JobContext, WorkerPool
from ..running.workers.supervisor import HarnessError, OutOfTime, WorkerLost

# Before so many clauses were run, nothing is said.
_LEAST: Final = 5


class Estimate:
    """The clauses that are left, and what each of them took where it was run.

    Clauses differ a hundredfold and candidates much less: a clause that another candidate was asked
    already is expected to take as long, any other one as long as all did on average.
    """

    def __init__(self, slugs: Iterable[str], *, jobs: int = 1) -> None:
        self._left = Counter(slugs)
        self._jobs = jobs
        self._took: dict[str, list[float]] = defaultdict(list)
        self.total = self._left.total()
        self.done = 0

    def heard(self, slug: str, seconds: float) -> None:
        """A clause was run."""
        if self._left[slug]:
            self._left[slug] -= 1
        self._took[slug].append(seconds)
        self.done += 1

    def again(self, slug: str) -> None:
        """A clause that was run will be run once more."""
        self._left[slug] += 1
        self.total += 1

    def seconds(self) -> float | None:
        """The seconds that are left, None where too little was seen."""
        if self.done < _LEAST:
            return None
        means = {slug: sum(took) / len(took) for slug, took in self._took.items()}
        every = [seconds for took in self._took.values() for seconds in took]
        mean = sum(every) / len(every)
        work = sum(many * means.get(slug, mean) for slug, many in self._left.items())
        return work / max(1, min(self._jobs, self._left.total()))


# What is asked again: the others have failed already, or say nothing whatever is asked.
WORTH_ASKING: Final = ("passed", "untestable")


def worth_asking(result: ClauseResult) -> bool:
    """Whether fresh examples may tell more of a clause."""
    return result.status in WORTH_ASKING and result.planned is None and result.examples > 0


def combined(before: ClauseResult, more: ClauseResult) -> ClauseResult:
    """What a clause showed so far with what another round showed."""
    margins = [one for one in (before.margin, more.margin) if one is not None]
    counted: dict[str, Any] = {
        "examples": before.examples + more.examples,
        "binding": before.binding + more.binding,
        "margin": max(margins) if margins else None,
        "seconds": before.seconds + more.seconds,
        "trail": _trail(before, more),
        "planned": before.planned,
    }
    if more.status in ("failed", "error"):
        return more.replace(**counted)
    if before.status == "untestable" and more.status == "passed":
        return before.replace(**counted, status="passed", reason="")
    return before.replace(**counted)


def _trail(before: ClauseResult, more: ClauseResult) -> dict[str, Any] | None:
    """A shard's trail with the sums of its later rounds, which no other shard has asked."""
    if before.trail is None:
        return None
    known = before.trail.get("explored") or {"examples": 0, "binding": 0, "margin": None}
    margins = [one for one in (known["margin"], more.margin) if one is not None]
    return {
        **before.trail,
        "explored": {
            "examples": known["examples"] + more.examples,
            "binding": known["binding"] + more.binding,
            "margin": max(margins) if margins else None,
            "failed": more.status == "failed",
        },
    }


CONTRADICTIONS: Final = "conformance.tools.identification.contradictions:job"
TROUBLE: Final = "conformance.running.workers.planning:trouble_job"
_LOST: Final = ("hung", "crashed")
# With so many candidates a worker, each is run by one worker; else its clauses are spread.
_CANDIDATES_A_WORKER: Final = 2

Said = tuple[int, ClauseResult] | list[str]
Judge = Callable[[Loaded, ClauseResult], ClauseResult]


def ignore_end(_index: int) -> None:
    """Do nothing when the last clause of a candidate has been run."""


class ShowProgress(Protocol):
    """Who is told how far a run is, and the seconds that are left where they can be told."""

    def __call__(self, doing: str, done: int, total: int, left: float | None = None, /) -> None:
        """Show it."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some clauses of one candidate, by their places in its plan.

    explains
        Failures that were found before are made small and named.
    ends
        They are the last of the candidate: where it contradicts its declaration is asked then.
    """

    index: int
    numbers: tuple[int, ...]
    order: Order = field(default_factory=Order)
    explains: bool = False
    ends: bool = False


@dataclass(kw_only=True)
class Schedule:
    """A run of every clause of the loaded candidates; what was found so far can always be read.

    ``judge`` holds a result against what is expected to fail, ``warns`` says of which results it is
    asked why: those of a shard are not all there are. ``ended`` is called with the index of each
    candidate when its last clause has been run.
    """

    crew: WorkerPool
    loaded: Sequence[Loaded]
    judge: Judge
    progress: ShowProgress
    ended: Callable[[int], None] = ignore_end
    jobs: int = 1
    deadline: Deadline | None = None
    explores: bool = False
    warns: tuple[str, ...] = ("failed", "untestable")
    remembers: bool = False
    results: list[dict[int, ClauseResult]] = field(init=False)
    warnings: dict[int, list[str]] = field(init=False, default_factory=dict)
    rounds: int = field(init=False, default=0)
    explored: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.results = [{} for _ in self.loaded]
        self._again: set[int] = set()
        self._estimate = Estimate(())

    def found(self, index: int) -> list[ClauseResult]:
        """The results of a candidate, in the order of its plan."""
        return [self.results[index][number] for number in sorted(self.results[index])]

    def run(self) -> None:
        """Run it all; an exception leaves what was found."""
        whole = self.jobs == 1 or len(self.loaded) >= _CANDIDATES_A_WORKER * self.jobs
        asked = [self._number_of(one) for one in self.loaded]
        slugs = [
            one.planned[n].id for one, own in zip(self.loaded, asked, strict=True) for n in own
        ]
        self._estimate = Estimate(slugs, jobs=self.jobs)
        if whole:
            self._work([self._whole(index) for index in range(len(self.loaded))])
        else:
            self._work([part for index in range(len(self.loaded)) for part in self._split(index)])
            self._work(list(self._second()))
        while self.explores and self.deadline is not None and self.deadline.left() > 0.0:
            if not self._explore(whole=whole):
                return

    def _work(self, parts: list[Chunk]) -> None:
        if parts:
            self.crew.work(parts, self._do, self._heard)

    @staticmethod
    def _number_of(loaded: Loaded) -> list[int]:
        return [number for number, task in enumerate(loaded.planned) if not task.reason]

    def _whole(self, index: int) -> Chunk:
        numbers = tuple(range(len(self.loaded[index].planned)))
        return Chunk(index=index, numbers=numbers, ends=True)

    def _split(self, index: int) -> Iterator[Chunk]:
        """One part a family, dtype and device, whose clauses share goldens; failures wait."""
        tasks = self.loaded[index].planned
        places = groupby(
            range(len(tasks)), key=lambda n: (tasks[n].device, tasks[n].dtype, tasks[n].family)
        )
        for _, numbers in places:
            yield Chunk(index=index, numbers=tuple(numbers), order=Order(deferred=True))

    def _second(self) -> Iterator[Chunk]:
        """What one worker must do, since each clause's outcome depends on those before it.

        Those are failures, for which the tries to make them small are shared, and all clauses of a
        candidate that hangs or dies, which is given up after a while.
        """
        for index, own in enumerate(self.results):
            if index in self._again:
                for number in self._number_of(self.loaded[index]):
                    self._estimate.again(self.loaded[index].planned[number].id)
                yield self._whole(index)
            else:
                failures = [number for number in sorted(own) if own[number].status == "failed"]
                yield Chunk(index=index, numbers=tuple(failures), explains=True, ends=True)

    def _explore(self, *, whole: bool) -> bool:
        """Another round of fresh examples; whether there was anything to ask."""
        self.rounds += 1
        parts = []
        for index, own in enumerate(self.results):
            planned = [self._whole(index)] if whole else self._split(index)
            for part in planned:
                numbers = tuple(n for n in part.numbers if n in own and worth_asking(own[n]))
                if numbers:
                    order = Order(round=self.rounds)
                    parts.append(Chunk(index=index, numbers=numbers, order=order))
        slugs = [self.loaded[part.index].planned[n].id for part in parts for n in part.numbers]
        self._estimate = Estimate(slugs, jobs=self.jobs)
        self._work(parts)
        return bool(parts)

    def _do(self, hands: JobContext[Said], part: Chunk) -> None:
        """In a thread: run, or explain, the clauses of a part."""
        own = dict(self.results[part.index])
        for number, result in self._results(hands, part):
            if hands.stopping() or (part.order.deferred and part.index in self._again):
                return
            own[number] = result
            hands.tell((number, result))
        if part.ends:
            hands.tell(self._warnings(hands, part.index, list(own.values())))

    def _results(self, hands: JobContext[Said], part: Chunk) -> Iterator[tuple[int, ClauseResult]]:
        supervisor, index = hands.supervisor, part.index
        if part.explains:
            for number in part.numbers:
                yield number, supervisor.explain(index, number, self.results[index][number])
            return
        found = supervisor.run_candidate(index, part.numbers, part.order)
        yield from zip(part.numbers, found, strict=False)

    def _heard(self, part: Chunk, said: Said) -> None:
        if isinstance(said, list):
            self.warnings[part.index] = said
            self.ended(part.index)
            return
        number, result = said
        own, loaded = self.results[part.index], self.loaded[part.index]
        if part.order.round:
            self.explored += result.examples
            own[number] = combined(own[number], result)
        elif number not in own or result.examples or not self._is_over:
            own[number] = result
        if part.order.deferred and result.violation is not None and result.violation.kind in _LOST:
            self._again.add(part.index)
        if not loaded.planned[number].reason and not part.explains:
            self._estimate.heard(result.id, result.seconds)
        self._tell(part, f"{loaded.name} {result.id}")

    def _tell(self, part: Chunk, doing: str) -> None:
        """Say how far it is, and how long it takes: as estimated, and never beyond the limit."""
        estimate, left = self._estimate, self._estimate.seconds()
        if self.deadline is not None:
            left = self.deadline.left() if left is None else min(left, self.deadline.left())
        number = part.order.round
        told = f"round {number + 1}: {doing}" if number else doing
        self.progress(told, estimate.done, estimate.total, left)

    @property
    def _is_over(self) -> bool:
        return self.deadline is not None and self.deadline.left() == 0.0

    def _warnings(
        self, hands: JobContext[Said], index: int, results: Sequence[ClauseResult]
    ) -> list[str]:
        """Where a declaration contradicts what its candidate does; asked where a MUST is not met.

        Before that come the notes on how it was loaded, and after it the database's trouble.
        """
        loaded = self.loaded[index]
        judged = [self.judge(loaded, result) for result in results]
        told = [one for one in judged if one.level == "MUST" and one.status in self.warns]
        lost = any(one.violation is not None and one.violation.kind in _LOST for one in told)
        asked = [CONTRADICTIONS] if told and not lost else []
        asked += [TROUBLE] if self.remembers else []
        return [*loaded.notes, *(said for job in asked for said in self._asked(hands, index, job))]

    def _asked(self, hands: JobContext[Said], index: int, job: str) -> list[str]:
        if self._is_over or hands.stopping():
            return []
        try:
            found: list[str] = hands.supervisor.perform(index, job)
        except (WorkerLost, OutOfTime, UsageError, HarnessError):  # the verdict stands without
            return []
        return found
