"""The catalogue of a run: its options, its entries from all sources, and their execution.

In the worker they are plans without reduction and diagnosis.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ...adapters.module import module
from ...base.mistake import Mistake, mistakes_in
from ...base.profile import PROFILES, Profile
from ...base.results import ClauseResult
from ...calls.ranks import spanning
from ...clauses.registry import all_clauses
from ...declare.candidate import Candidate
from ...declare.decorators import renamed
from ...diagnosis.mistakes import MISTAKES, NamedMistake
from ...errors import UsageError
from ...identification.opening import open_object, resolve_one
from ...running.clause_run import PlannedClause
from ...running.runner import CandidateRun
from ...running.workers.messages import Loaded, RunOptions
from ...running.workers.pool import WorkerPool
from ...running.workers.supervisor import Supervisor
from ...session.expectations import judge
from ...session.order import matching
from ...targets.loading import (
    MISTAKE_GROUP,
    closest,
    home,
    import_dotted,
    put_on_path,
    registered,
    taking_in,
)
from ...targets.resolving import is_module, object_of
from .mistaken_candidates import act_out, act_out_named, correct_candidates

LOADER: Final = "conformance.tools.teeth.jobs:plan_teeth"
REPOSITORY: Final = "candidates.broken"


@dataclass(frozen=True, kw_only=True)
class TeethOptions(RunOptions):
    """The mistakes and the correct candidates of a run, with all that a worker needs to start over.

    ``targets`` name mistakes; without targets the whole catalogue runs: the shipped mistakes, the
    mistakes of installed distributions and, in a checkout of the repository, ``candidates.broken``.
    ``correct`` names further correct candidates; the others run with the whole catalogue only.
    ``mistakes`` and ``not_mistakes`` are globs of names. Without ``thorough`` the many correct
    candidates of the repository are left out. ``known`` are the entries that another worker has
    loaded: an entry's candidate is then made when the entry is run.
    """

    correct: tuple[str, ...] = ()
    thorough: bool = True
    mistakes: tuple[str, ...] = ()
    not_mistakes: tuple[str, ...] = ()
    preflight: bool = False
    loader: str = LOADER
    known: tuple[Loaded, ...] = ()

    def knowing(self, loaded: Sequence[Loaded]) -> TeethOptions:
        """The options with what another worker has loaded."""
        return dataclasses.replace(self, known=tuple(loaded))

    @property
    def whole(self) -> bool:
        """Whether the whole catalogue is run."""
        return not (self.targets or self.mistakes or self.not_mistakes)


@dataclass(frozen=True, kw_only=True)
class LoadedEntry(Loaded):
    """A mistake, or a correct candidate, with the facts for the record; primary clause first."""

    sentence: str
    fix: str
    primary: str
    also: tuple[str, ...]
    origin: str
    correct: bool


Tell = Callable[[str, str], None]
SHIPPED: Final = "attention-conformance"
LEGITIMATE: Final = "candidates.legitimate"


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A mistake, or a correct candidate, ready to run.

    ``make`` makes the candidate when it is run: the candidates of the whole catalogue take seconds.
    ``primary`` is "" for candidates that are only known to be broken: any clause may catch them.
    """

    name: str
    make: Callable[[], Candidate]
    sentence: str = ""
    fix: str = ""
    primary: str = ""
    also: tuple[str, ...] = ()
    origin: str = ""
    correct: bool = False

    @cached_property
    def candidate(self) -> Candidate:
        """The candidate under the entry's name; raises UsageError where a mistake has none."""
        return renamed(self.make(), self.name)


def entries(options: TeethOptions, tell: Tell) -> list[CatalogueEntry]:
    """Every entry that the options select; raises UsageError for unusable options."""
    mistakes = [*_mistakes(options, tell)]
    correct = [*_correct(options, tell)]
    chosen = _chosen(_unique(mistakes), options)
    return [*chosen, *_unique(correct)]


def _mistakes(options: TeethOptions, tell: Tell) -> Iterator[CatalogueEntry]:
    for target in options.targets:
        tell("loading", target)
        yield from _of_target(target)
    if options.targets:
        return
    tell("loading", "the shipped mistakes")
    # Other layouts have broken candidates of their own, and acted ones are float32.
    apart = ("packed", "sequences", "caches", "latent", "quantised", "half")
    shown = (mistake for mistake in MISTAKES if mistake.needs not in apart)
    yield from (_entry(mistake, SHIPPED) for mistake in shown)
    for point in registered(MISTAKE_GROUP):
        tell("loading", point.name)
        yield from taking_in(point, "mistakes", partial(_brought, origin=home(point)))
    repository = _repository(REPOSITORY, tell)
    if repository is not None:
        yield from (_entry(mistake, REPOSITORY) for mistake in mistakes_in(repository))


def _correct(options: TeethOptions, tell: Tell) -> Iterator[CatalogueEntry]:
    """The correct candidates of the options, and with the whole catalogue all others as well."""
    if options.whole:
        yield from _catalogued_correct(options, tell)
    for target in options.correct:
        tell("loading", target)
        for candidate in resolve_one(target):
            yield _given(candidate, target, correct=True)


def _catalogued_correct(options: TeethOptions, tell: Tell) -> Iterator[CatalogueEntry]:
    for candidate in correct_candidates():
        yield _given(candidate, SHIPPED, correct=True)
    for name, attribute in ((REPOSITORY, "CORRECT"), (LEGITIMATE, "CANDIDATES")):
        if name == LEGITIMATE and not options.thorough:
            continue
        module = _repository(name, tell)
        for candidate in getattr(module, attribute, ()):
            yield _given(candidate, name, correct=True)


def _given(
    candidate: Candidate, origin: str, *, correct: bool, sentence: str = ""
) -> CatalogueEntry:
    return CatalogueEntry(
        name=candidate.name,
        make=lambda: candidate,
        sentence=sentence,
        origin=origin,
        correct=correct,
    )


def _repository(name: str, tell: Tell) -> ModuleType | None:
    """A package of the repository, where the working folder is a checkout of it."""
    if not Path(*name.split("."), "__init__.py").is_file():
        return None
    tell("loading", name)
    put_on_path(Path.cwd())
    return import_dotted(name)


def _of_target(target: str) -> Iterator[CatalogueEntry]:
    """The mistakes of a target, or without mistakes its candidates, taken as broken."""
    mistakes = list(mistakes_in(object_of(target)))
    if mistakes:
        yield from (_entry(mistake, target) for mistake in mistakes)
        return
    for candidate in resolve_one(target):
        yield _given(candidate, target, correct=False, sentence=_sentence(candidate))


def _sentence(candidate: Candidate) -> str:
    text = inspect.getdoc(candidate.function) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _brought(value: Any, origin: str) -> list[CatalogueEntry]:
    """The mistakes of an entry point; raises UsageError for anything else."""
    mistakes = list(mistakes_in(value))
    listed = value if isinstance(value, (list, tuple)) else [value]
    for entry in listed if not isinstance(value, ModuleType) else ():
        if not isinstance(entry, Mistake):
            msg = f"it holds {entry!r:.60}: give a conformance.Mistake, or a list of them"
            raise UsageError(msg)
    if not mistakes:
        msg = "it holds no conformance.Mistake"
        raise UsageError(msg)
    # What cannot be made is refused, whatever is selected.
    return [_entry(mistake, origin, candidate_of(mistake, origin)) for mistake in mistakes]


def _entry(mistake: Mistake, origin: str, candidate: Candidate | None = None) -> CatalogueEntry:
    _check_clauses(mistake)
    sentence = mistake.sentence
    if isinstance(mistake, NamedMistake):
        sentence = f"{sentence[0].upper()}{sentence[1:]}."
    return CatalogueEntry(
        name=mistake.name,
        make=partial(candidate_of, mistake, origin) if candidate is None else lambda: candidate,
        sentence=sentence,
        fix=mistake.fix,
        primary=mistake.primary,
        also=tuple(mistake.also),
        origin=origin,
    )


def _check_clauses(mistake: Mistake) -> None:
    slugs = [clause.id for clause in all_clauses()]
    for slug in (mistake.primary, *mistake.also):
        if slug not in slugs:
            msg = (
                f"the mistake {mistake.name!r} names the clause {slug!r}, which does not exist"
                f"{closest(slug, slugs)}"
            )
            raise UsageError(msg)


def candidate_of(mistake: Mistake, origin: str) -> Candidate:
    """The broken implementation under the mistake's name; raises UsageError for none or many."""
    if isinstance(mistake, NamedMistake) and not mistake.only_a_point:
        return renamed(act_out_named(mistake), mistake.name)
    if mistake.candidate is None:
        return act_out(mistake.name, mistake.changes)
    made = mistake.candidate
    candidates = [module(made)] if is_module(made) else open_object(made, origin)
    if len(candidates) != 1:
        count = len(candidates)
        msg = f"the candidate of the mistake {mistake.name!r} is {count} candidates: give one"
        raise UsageError(msg)
    return renamed(candidates[0], mistake.name)


def _unique(named: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """Each name once: the second of a name is called ``name-2`` and so on."""
    taken: set[str] = set()
    result = []
    for entry in named:
        name, number = entry.name, 1
        while name in taken:
            number += 1
            name = f"{entry.name}-{number}"
        taken.add(name)
        result.append(dataclasses.replace(entry, name=name))
    return result


def _chosen(mistakes: list[CatalogueEntry], options: TeethOptions) -> list[CatalogueEntry]:
    """The mistakes that the globs leave; raises UsageError for a glob without a match."""
    names = [entry.name for entry in mistakes]
    for option, globs in (("--only", options.mistakes), ("--skip", options.not_mistakes)):
        for glob in globs:
            if not matching([glob], names):
                msg = f"{option} {glob!r} matches no mistake{closest(glob, names)}"
                raise UsageError(msg)
    admitted = set(matching(options.mistakes or ["*"], names))
    admitted -= set(matching(options.not_mistakes, names))
    if not admitted:
        msg = "--only and --skip leave no mistake: nothing would be caught"
        raise UsageError(msg)
    return [entry for entry in mistakes if entry.name in admitted]


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
    """Run every entry; ``report`` gets an entry's results, and whether the results are complete.

    An entry that an interrupt cuts off is reported, too. Raises HarnessError when a worker cannot
    go on.
    """
    pool.work(
        range(len(loaded)),
        partial(_run, loaded=loaded, first=pace.first),
        lambda index, results: report(loaded[index], *results),
        most=-(-len(loaded) // _ENTRIES_A_WORKER),
    )


def entries_of(loaded: Iterable[Loaded]) -> list[LoadedEntry]:
    """The entries of the catalogue among what was loaded: all of it."""
    return [entry for entry in loaded if isinstance(entry, LoadedEntry)]


def _run(
    supervisor: Supervisor,
    index: int,
    stopping: Callable[[], bool],
    /,
    *,
    loaded: list[LoadedEntry],
    first: bool,
) -> Iterator[EntryResults]:
    """The results of an entry; with ``first`` a mistake's run ends with the first catch."""
    entry = loaded[index]
    results: list[ClauseResult] = []
    for result in supervisor.run_candidate(index):
        if stopping():
            yield results, False
            return
        judged = judge(result, entry.name, entry.expected if entry.correct else ())
        results.append(judged)
        if first and not entry.correct and catches(judged):
            break
    yield results, True


def catches(result: ClauseResult) -> bool:
    """Whether a result catches a mistake: a clause that must or should hold has failed."""
    return result.status == "failed" and result.level in _CAUGHT_BY


def plan_teeth(
    options: RunOptions, tell: Callable[[str, str], None] = lambda _what, _name: None
) -> list[TeethPlan]:
    """Load the catalogue and plan its clauses; raises UsageError with one sentence."""
    assert isinstance(options, TeethOptions)  # noqa: S101 (this loader is only named with these)
    bench = Bench(profile=PROFILES[options.profile], seed=options.seed)
    plans, every, known = [], entries(options, tell), entries_of(options.known)
    if [entry.name for entry in every] == [entry.name for entry in known]:
        return [
            TeethPlan(entry=entry, bench=bench, planned=list(own.planned), known=own)
            for entry, own in zip(every, known, strict=True)
        ]
    for entry in every:
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
        """The planned clauses of an entry, the clauses expected to catch its mistake first."""
        named = (entry.primary, *entry.also)
        planned = self.run_of(entry.candidate).planned()
        return sorted(
            planned,
            key=lambda clause: named.index(clause.id) if clause.id in named else len(named),
        )

    def run_of(self, candidate: Candidate) -> CandidateRun:
        """The run of a candidate; a new run where the last was another candidate's."""
        if self._current is None or self._current[0] is not candidate:
            # The failure alone counts here, not how small it can be made.
            run = CandidateRun(
                spanning(candidate), profile=self.profile, seed=self.seed, explain=False
            )
            self._current = (candidate, run)
        return self._current[1]


@dataclass(frozen=True, kw_only=True)
class TeethPlan:
    """One entry of the catalogue with the clauses planned for it, as a worker's plan.

    ``known`` is the entry as another worker loaded it: then no candidate is made before the run.
    """

    entry: CatalogueEntry
    bench: Bench
    planned: list[PlannedClause]
    known: LoadedEntry | None = None

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
        if self.known is not None:
            return self.known
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
            expected=candidate.declaration.expected_failures,
            planned=tuple(self.planned),
        )
