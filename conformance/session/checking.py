"""One run from targets to record: ``conformance check`` without options and views."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Final, Protocol

from ..base import limits
from ..base.expected import ExpectedFailure
from ..base.limits import NOT_FINISHED, NOT_RUN, Deadline, left_over
from ..base.profile import PROFILES
from ..base.record import CandidateEntry, Record
from ..base.results import ClauseResult
from ..base.selection import selected
from ..running.workers.messages import Loaded, Ready, RunOptions
from ..running.workers.pool import WorkerPool
from ..running.workers.supervisor import DEFAULT_TIMEOUT, HarnessError, OutOfTime
from ..targets.target_strings import split_target
from . import expectations
from .accepted_failures import UnjudgedRun
from .expectations import Selection, Stale, by_candidate, judge
from .order import check_selection, check_unchecked
from .renewing import Gate, renew
from .report import build_report, candidate_entry, verdict
from .schedule import JudgeResult, Schedule, ShowProgress

STOPPED: Final = "the run ended with its first failure"
NO_GATE: Final = Gate()
# Seconds between records kept during a run: as much is lost when the run is killed.
JOURNAL_SECONDS: Final = 10.0


def is_shard(options: RunOptions) -> bool:
    """Whether the run has only a part of each clause's examples."""
    return options.shard.count > 1


def what_is_missing(
    options: RunOptions,
    deadline: Deadline | None,
    results: Sequence[ClauseResult],
    *,
    stopped: bool = False,
) -> str:
    """Why the results alone give no verdict on a candidate, in one sentence, or ""."""
    reasons = []
    not_run, not_finished = _cut(deadline, results)
    if deadline is not None and not_run + not_finished:
        names = _not_asked(deadline, results)
        named = f" (not asked: {', '.join(names)})" if names else ""
        reasons.append(f"{deadline.sentence}: {left_over(not_run, not_finished)}{named}")
    if stopped:
        reasons.append(STOPPED)
    if is_shard(options):
        shard = options.shard
        reasons.append(
            f"shard {shard.index} of {shard.count} found no failure: 'conformance merge' of all "
            f"{shard.count} gives the verdict"
        )
    return "; ".join(reasons)


def _not_asked(deadline: Deadline, results: Sequence[ClauseResult]) -> list[str]:
    """Return the clauses without examples; a family without any as ``family.*``."""
    applied = [one for one in results if one.status != "not-applicable"]
    unasked = {one.id: one.family for one in applied if one.reason == NOT_RUN + deadline.sentence}
    whole = {
        family
        for family in unasked.values()
        if len({one.id for one in applied if one.family == family}) > 1
        and all(one.id in unasked for one in applied if one.family == family)
    }
    return [*dict.fromkeys(f"{f}.*" if f in whole else slug for slug, f in unasked.items())]


def _cut(deadline: Deadline | None, results: Iterable[ClauseResult]) -> tuple[int, int]:
    """Return the numbers of clauses left out and cut short by the limit."""
    if deadline is None:
        return 0, 0
    reasons = [result.reason for result in results]
    not_finished = sum(reason.startswith(NOT_FINISHED) for reason in reasons)
    return reasons.count(f"{NOT_RUN}{deadline.sentence}"), not_finished


def _silent(_activity: str, _done: int, _total: int, _left: float | None = None) -> None:
    """Show no progress."""


def _unannounced(_sentence: str) -> None:
    """Announce no verdict before the record is complete."""


@dataclass(kw_only=True)
class _Run:
    """The state of a run, from which the record of an interrupted run is made."""

    ready: Ready = field(
        default_factory=lambda: Ready(environment={}, specification="", sentences={})
    )
    loaded: list[Loaded] = field(default_factory=list)
    unjudged: dict[str, list[ClauseResult]] = field(default_factory=dict)
    results: dict[str, list[ClauseResult]] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    from_file: tuple[ExpectedFailure, ...] = ()
    today: date = field(default_factory=limits.today)
    written: dict[str, Any] | None = None
    started: str = ""
    deadline: Deadline | None = None
    schedule: Schedule | None = None
    cut_in: str = ""
    interrupted: bool = False
    finished: bool = False

    @property
    def stopped(self) -> bool:
        return self.schedule is not None and self.schedule.has_stopped


class MakePool(Protocol):
    """Makes the workers of a run."""

    def __call__(
        self, options: RunOptions, /, *, jobs: int, timeout: float, deadline: Deadline | None
    ) -> WorkerPool:
        """The pool, not yet started."""


def check(
    options: RunOptions,
    *,
    gate: Gate = NO_GATE,
    timeout: float = DEFAULT_TIMEOUT,
    jobs: int = 1,
    max_time: float | None = None,
    began: float | None = None,
    progress: ShowProgress = _silent,
    announce: Callable[[str], None] = _unannounced,
    journal: Callable[[Record], None] | None = None,
    make_pool: MakePool = WorkerPool,
) -> Record:
    """Run every clause on every candidate and return the record.

    ``gate`` names the file of expected failures, and the file to renew from the results. Up to
    ``jobs`` workers share the work. After ``max_time`` seconds, counted from ``began`` on the
    monotonic clock (by default now), no further example begins, and the record names the clauses
    left out.

    ``announce`` gets a line for each finished candidate while further candidates are running:
    people see verdicts during a long run. ``journal`` now and then gets the record of the results
    so far, as of an interrupted run, since after SIGKILL or a failure of the harness nobody can
    write a record; isolated candidates have no journal, which would reveal the seed. ``make_pool``
    makes the workers.

    An interrupt (Ctrl-C) ends the run early: the record holds the results so far and says so.
    Raises UsageError for bad input and HarnessError when no worker can run.
    """
    started = time.monotonic()
    within = replace(options.graph_options, seconds=timeout, memory=options.max_memory)
    options = replace(options, graph_options=within)
    run = _Run(started=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))
    if max_time is not None:
        run.deadline = Deadline(limit=max_time, started=started if began is None else began)
    try:
        with make_pool(options, jobs=jobs, timeout=timeout, deadline=run.deadline) as pool:
            _prepare(run, pool, options, gate, progress)
            # An isolated candidate may read files: the record would tell it the seed.
            if journal is not None and not options.isolated:
                progress = _journalled(progress, run, options, started, journal)
            run.schedule = _schedule(run, pool, options, jobs, progress)
            run.schedule.ended = lambda index: _announce(run, index, options, announce)
            run.schedule.run()
        run.finished = True
    except OutOfTime as over:
        run.finished, run.cut_in = True, str(over)
    except KeyboardInterrupt:
        run.interrupted = not run.finished
    except HarnessError:
        if journal is not None and not options.isolated:
            _keep_so_far(run, options, started, journal)
        raise
    _collect(run, options)
    if gate.write is not None:
        _renew(run, options, gate)
    return _record(run, options, time.monotonic() - started)


def _prepare(
    run: _Run,
    pool: WorkerPool,
    options: RunOptions,
    gate: Gate,
    progress: ShowProgress,
) -> None:
    progress("starting", 0, 0)
    run.ready = pool.start()
    slugs = run.ready.sentences
    check_selection(slugs, options.only, options.skip)
    run.from_file = gate.entries(slugs)
    progress("loading", 0, 0)
    run.loaded = pool.load()
    check_unchecked(options.unchecked, run.loaded)
    for loaded in run.loaded:
        for entry in loaded.expected:
            expectations.check_clause(entry, slugs, f"{loaded.name} ({loaded.target})")


def _schedule(
    run: _Run, pool: WorkerPool, options: RunOptions, jobs: int, progress: ShowProgress
) -> Schedule:
    return Schedule(
        pool=pool,
        loaded=run.loaded,
        judge=_judge(run, options),
        progress=progress,
        jobs=jobs,
        deadline=run.deadline,
        explores=PROFILES[options.profile].explores,
        warns=("failed",) if is_shard(options) else ("failed", "untestable"),
        remembers=bool(options.databases),
        first=options.first,
        exitfirst=options.exitfirst,
        in_turn=options.in_turn or run.deadline is not None,
    )


def _journalled(
    show: ShowProgress,
    run: _Run,
    options: RunOptions,
    started: float,
    journal: Callable[[Record], None],
) -> ShowProgress:
    """Wrap the progress display to also keep the record so far now and then."""
    last = time.monotonic()

    def progress(activity: str, done: int, total: int, left: float | None = None) -> None:
        nonlocal last
        show(activity, done, total, left)
        if time.monotonic() - last >= JOURNAL_SECONDS:
            _keep_so_far(run, options, started, journal)
            last = time.monotonic()

    return progress


def _keep_so_far(
    run: _Run, options: RunOptions, started: float, journal: Callable[[Record], None]
) -> None:
    so_far = replace(run, interrupted=True)
    _collect(so_far, options)
    journal(_record(so_far, options, time.monotonic() - started))


def _announce(run: _Run, index: int, options: RunOptions, announce: Callable[[str], None]) -> None:
    """Announce the verdict on one of several candidates, with its reason.

    A shard has no verdict, and a run that explores may still find a failure. An expectation of a
    file is judged at the end: another candidate may meet it.
    """
    if run.schedule is None or len(run.loaded) == 1 or is_shard(options) or run.schedule.explores:
        return
    loaded = run.loaded[index]
    judge_result = _judge(run, options)
    results = [judge_result(loaded, result) for result in run.schedule.results_of(index)]
    stale = expectations.not_holding(
        loaded.expected, {loaded.name: results}, _selection(run, options), today=run.today
    )
    missing = what_is_missing(options, run.deadline, results)
    word, reason = verdict(loaded, results, stale, missing=missing)
    took = sum(result.seconds for result in results)
    applied = len({result.id for result in results if result.status != "not-applicable"})
    noun = "clause" if applied == 1 else "clauses"
    announce(f"{loaded.name}: {word}, {applied} {noun} in {took:.0f} s ({reason})")


def _judge(run: _Run, options: RunOptions) -> JudgeResult:
    """Return the judging function, picklable for another machine."""
    return partial(_judged, from_file=run.from_file, today=run.today, in_shard=is_shard(options))


def _judged(
    loaded: Loaded,
    result: ClauseResult,
    *,
    from_file: tuple[ExpectedFailure, ...],
    today: date,
    in_shard: bool,
) -> ClauseResult:
    """Judge a result by expectations; in a shard a pass may yet fail in another shard."""
    judged = judge(result, loaded.name, (*loaded.expected, *from_file), today=today)
    return result if in_shard and judged.status == "unexpected-pass" else judged


def _collect(run: _Run, options: RunOptions) -> None:
    if run.schedule is None:
        return
    judge_result = _judge(run, options)
    for index, loaded in enumerate(run.loaded):
        results = run.unjudged[loaded.name] = run.schedule.results_of(index)
        run.results[loaded.name] = [judge_result(loaded, result) for result in results]
        run.warnings[loaded.name] = run.schedule.warnings.get(index, list(loaded.notes))


def _renew(run: _Run, options: RunOptions, gate: Gate) -> None:
    """Write the file of expected failures that makes the run green, and judge the run by it.

    After an incomplete run the file is left alone.
    """
    outcome = UnjudgedRun(
        loaded=run.loaded,
        results=run.unjudged,
        selection=_selection(run, options),
        today=run.today,
        strict=gate.strict,
    )
    cut = "the run was interrupted" if run.interrupted else STOPPED if run.stopped else ""
    if not cut and _limit(run).get("reached"):
        cut = "the limit was reached before all clauses were run"
    renewed = f"{gate.write} is left as it was: {cut}" if cut else renew(gate, outcome)
    if isinstance(renewed, str):
        run.written = {"file": str(gate.write), "refused": renewed}
        return
    run.written, run.from_file = renewed.written, renewed.entries
    run.results = outcome.judged(renewed.entries)


def _selection(run: _Run, options: RunOptions) -> Selection:
    slugs = selected(run.ready.sentences, options.only, options.skip)
    return Selection(slugs=slugs, dtypes=options.dtypes, devices=options.devices)


def _record(run: _Run, options: RunOptions, seconds: float) -> Record:
    stale_by_name, all_stale = _stale(run, options)
    entries = []
    for loaded in run.loaded:
        results = run.results.get(loaded.name, [])
        unfinished = len(results) < max(1, len(loaded.planned))
        entry = candidate_entry(
            loaded,
            results,
            run.ready.sentences,
            stale_by_name[loaded.name],
            warnings=run.warnings.get(loaded.name, ()),
            graph_options=options.graph_options,
            interrupted=run.interrupted and unfinished,
            missing=what_is_missing(
                options, run.deadline, results, stopped=run.stopped and unfinished
            ),
        )
        entries.append(entry)
    if is_shard(options):
        for loaded, entry in zip(run.loaded, entries, strict=True):
            # The verdict of the merged record needs these as well as the results.
            entry["shard"] = {
                "gauge": loaded.gauge,
                "deviations": list(loaded.deviations),
                "mistaken": list(loaded.mistaken),
                "unjudged": loaded.unjudged,
                "expected": [expected.as_json() for expected in loaded.expected],
            }
    report = build_report(
        run.ready,
        options,
        entries or list(_not_loaded(run, options)),
        stale=all_stale,
        seconds=seconds,
        started=run.started,
        interrupted=run.interrupted,
        more=_more(run, options),
    )
    if run.written is not None:
        report["written_expectations"] = run.written
    return report


def _not_loaded(run: _Run, options: RunOptions) -> Iterator[CandidateEntry]:
    """Yield an entry for each target of a run whose time was up before loading.

    A shard has none: its entries are merged by clause with those of other shards.
    """
    if run.deadline is None or run.loaded or run.interrupted or is_shard(options):
        return
    for target in options.targets:
        name = split_target(target)[1] or target
        where = f": {run.cut_in}" if run.cut_in else f" before {name} was loaded"
        missing = f"{run.deadline.sentence}{where}; no clause was run"
        yield candidate_entry(Loaded(name=name, target=target, kind=""), [], {}, missing=missing)


def _more(run: _Run, options: RunOptions) -> dict[str, Any]:
    """Return the record's keys on the run's options, and on missing parts."""
    names = ("targets", "dtypes", "devices", "only", "skip", "compile", "unchecked", "isolated")
    more: dict[str, Any] = {"options": {name: getattr(options, name) for name in names}}
    if options.isolated:
        more["isolated"] = next((loaded.isolation for loaded in run.loaded), "")
    if is_shard(options):
        expected = [entry.as_json() for entry in run.from_file]
        more["shard"] = {**asdict(options.shard), "expected": expected}
    if run.stopped:
        planned = sum(not one.reason for loaded in run.loaded for one in loaded.planned)
        results = [one for own in run.results.values() for one in own]
        applied = sum(one.status != "not-applicable" for one in results)
        more["stopped"] = {"asked": applied, "planned": planned}
    if run.deadline is not None:
        more["limit"] = _limit(run)
    if run.schedule is not None and run.schedule.rounds:
        more["explored"] = {"rounds": run.schedule.rounds, "examples": run.schedule.explored}
    return more


def _limit(run: _Run) -> dict[str, Any]:
    """Return the record's ``limit``: the seconds of the run, and the clauses left out."""
    if run.deadline is None:
        return {}
    every = [result for own in run.results.values() for result in own]
    not_run, not_finished = _cut(run.deadline, every)
    return {
        "seconds": run.deadline.limit,
        "reached": bool(not_run or not_finished or not run.loaded),
        "not_run": not_run,
        "not_finished": not_finished,
        "loaded": bool(run.loaded),
    }


def _stale(run: _Run, options: RunOptions) -> tuple[dict[str, list[Stale]], list[Stale]]:
    if run.interrupted or run.stopped or is_shard(options) or not run.loaded:
        return {loaded.name: [] for loaded in run.loaded}, []
    declared = {loaded.name: loaded.expected for loaded in run.loaded}
    selection = _selection(run, options)
    return by_candidate(run.from_file, declared, run.results, selection, today=run.today)
