"""The catalogue in the worker: plans without reduction and diagnosis, and its entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ...base.profile import PROFILES, Profile
from ...base.results import ClauseResult
from ...declare.candidate import Candidate
from ...running.clause_run import PlannedClause
from ...running.runner import CandidateRun
from ...running.workers.messages import Loaded, RunOptions
from ...running.workers.pool import JobContext, WorkerPool
from ...session.expectations import judge
from .catalogue import CatalogueEntry, entries
from .options import LoadedEntry, TeethOptions

# Starting a worker takes as long as some entries.
_ENTRIES_A_WORKER: Final = 8
_CAUGHT_BY: Final = ("MUST", "SHOULD")

EntryDone = Callable[[LoadedEntry, list[ClauseResult], bool], None]
EntryResults = tuple[list[ClauseResult], bool]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a run goes: workers, the time limit of an answer, and whether one clause is enough."""

    jobs: int
    timeout: float
    first: bool


def run_entries(pool: WorkerPool, loaded: list[LoadedEntry], pace: Pace, report: EntryDone) -> None:
    """Run every entry; ``report`` gets the results of each, and whether they are all of them.

    It also gets those of an entry that an interrupt cuts off. Raises HarnessError when a worker
    cannot go on.
    """

    def do(job: JobContext[EntryResults], index: int) -> None:
        job.report(_run(job, index, loaded[index], first=pace.first))

    pool.work(
        range(len(loaded)),
        do,
        lambda index, results: report(loaded[index], *results),
        most=-(-len(loaded) // _ENTRIES_A_WORKER),
    )


def entries_of(loaded: list[Loaded]) -> list[LoadedEntry]:
    """The entries of the catalogue among what was loaded: all of it."""
    return [entry for entry in loaded if isinstance(entry, LoadedEntry)]


def _run(
    job: JobContext[EntryResults], index: int, entry: LoadedEntry, *, first: bool
) -> EntryResults:
    """The results of an entry; a mistake that need be caught only once ends with that clause."""
    results: list[ClauseResult] = []
    for result in job.supervisor.run_candidate(index):
        if job.stopping():
            return results, False
        judged = judge(result, entry.name, entry.expected if entry.correct else ())
        results.append(judged)
        if first and not entry.correct and catches(judged):
            break
    return results, True


def catches(result: ClauseResult) -> bool:
    """Whether a result catches a mistake: a clause that must or should hold has failed."""
    return result.status == "failed" and result.level in _CAUGHT_BY


def plan_teeth(
    options: RunOptions, tell: Callable[[str, str], None] = lambda _what, _name: None
) -> list[TeethPlan]:
    """Load the catalogue and plan its clauses; raises UsageError with one sentence."""
    assert isinstance(options, TeethOptions)  # noqa: S101 (this loader is only named with these)
    bench = Bench(profile=PROFILES[options.profile], seed=options.seed)
    plans = []
    for entry in entries(options, tell):
        tell("planning", entry.name)
        plans.append(TeethPlan(entry=entry, bench=bench, planned=bench.plan(entry)))
    return plans


@dataclass(kw_only=True)
class Bench:
    """Holds the run of one candidate at a time, which frees problems and answers of the last."""

    profile: Profile
    seed: int
    _current: tuple[Candidate, CandidateRun] | None = field(default=None, init=False)

    def plan(self, entry: CatalogueEntry) -> list[PlannedClause]:
        """The clauses of an entry, those first that are expected to catch it."""
        named = (entry.primary, *entry.also)
        planned = self.run_of(entry.candidate).planned()
        return sorted(
            planned,
            key=lambda clause: named.index(clause.id) if clause.id in named else len(named),
        )

    def run_of(self, candidate: Candidate) -> CandidateRun:
        """The run of a candidate; a new run where the last was another candidate's."""
        if self._current is None or self._current[0] is not candidate:
            # That it fails is what counts here, not how small its failure can be made.
            run = CandidateRun(candidate, profile=self.profile, seed=self.seed, explain=False)
            self._current = (candidate, run)
        return self._current[1]


@dataclass(frozen=True, kw_only=True)
class TeethPlan:
    """One entry of the catalogue with the clauses planned for it, as a worker's plan."""

    entry: CatalogueEntry
    bench: Bench
    planned: list[PlannedClause]

    @property
    def candidate(self) -> Candidate:
        """What is run."""
        return self.entry.candidate

    @property
    def run(self) -> CandidateRun:
        """The candidate's run, which the bench holds from now on."""
        return self.bench.run_of(self.entry.candidate)

    def loaded(self) -> LoadedEntry:
        """The entry as plain data."""
        entry, candidate = self.entry, self.entry.candidate
        return LoadedEntry(
            name=entry.name,
            sentence=entry.sentence,
            fix=entry.fix,
            primary=entry.primary,
            also=entry.also,
            origin=entry.origin,
            correct=entry.correct,
            target=candidate.target,
            kind=candidate.kind,
            declaration={},
            gauge="",
            deviations=(),
            expected=candidate.declaration.expected_failures,
            planned=tuple(self.planned),
        )
