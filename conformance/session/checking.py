"""One run from targets to record: what ``conformance check`` does but for options and views."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from ..base import limits
from ..base.expected import ExpectedFailure
from ..base.limits import NOT_FINISHED, NOT_RUN, Deadline
from ..base.profile import PROFILES
from ..base.record import Record
from ..base.results import ClauseResult
from ..running.workers.messages import Loaded, Ready, RunOptions
from ..running.workers.pool import WorkerPool
from ..running.workers.supervisor import DEFAULT_TIMEOUT, OutOfTime
from . import expectations
from .acceptance import UnjudgedRun
from .expectations import Selection, Stale, by_candidate, judge
from .renewing import Gate, renew
from .report import build_report, candidate_entry, verdict
from .schedule import Schedule, ShowProgress
from .selection import check_selection, selected


def is_shard(options: RunOptions) -> bool:
    """Whether only a part of each clause's examples was asked."""
    return options.shard.count > 1


def options_entry(options: RunOptions) -> dict[str, Any]:
    """The record's ``options``: what was asked for, beside profile and seed."""
    return {
        "targets": list(options.targets),
        "dtypes": None if options.dtypes is None else list(options.dtypes),
        "devices": None if options.devices is None else list(options.devices),
        "only": list(options.only),
        "skip": list(options.skip),
        "compile": options.compile,
        "unchecked": list(options.unchecked),
    }


def shard_entry(options: RunOptions, expected: Sequence[ExpectedFailure]) -> dict[str, Any]:
    """The record's ``shard``; its ``expected`` are the expectations of a file."""
    return {
        "index": options.shard.index,
        "count": options.shard.count,
        "expected": [entry.as_json() for entry in expected],
    }


def judging_entry(loaded: Loaded) -> dict[str, Any]:
    """A candidate's ``shard``: what its verdict needs beside the results."""
    return {
        "gauge": loaded.gauge,
        "deviations": list(loaded.deviations),
        "mistaken": list(loaded.mistaken),
        "expected": [entry.as_json() for entry in loaded.expected],
    }


def limit_entry(
    deadline: Deadline, results: Iterable[Sequence[ClauseResult]], *, loaded: bool
) -> dict[str, Any]:
    """The record's ``limit``: how long the run was given, and how much was left over."""
    every = [result for own in results for result in own]
    not_run = sum(_is_not_run(result, deadline) for result in every)
    not_finished = sum(result.reason.startswith(NOT_FINISHED) for result in every)
    return {
        "seconds": deadline.limit,
        "reached": bool(not_run or not_finished or not loaded),
        "not_run": not_run,
        "not_finished": not_finished,
        "loaded": loaded,
    }


def what_is_missing(
    options: RunOptions, deadline: Deadline | None, results: Sequence[ClauseResult]
) -> str:
    """Why no verdict on a candidate can be had from its results alone, in one sentence, or ""."""
    told = [] if deadline is None else _left_over(deadline, results)
    if is_shard(options):
        shard = options.shard
        told.append(
            f"shard {shard.index} of {shard.count} found no failure: 'conformance merge' of all "
            f"{shard.count} gives the verdict"
        )
    return "; ".join(told)


def _left_over(deadline: Deadline, results: Sequence[ClauseResult]) -> list[str]:
    not_run = sum(_is_not_run(result, deadline) for result in results)
    not_finished = sum(result.reason.startswith(NOT_FINISHED) for result in results)
    if not not_run + not_finished:
        return []
    told = [f"{not_run} clauses were not run"] if not_run != 1 else ["1 clause was not run"]
    if not_finished:
        told.append(f"{not_finished} not to the end")
    return [f"{deadline.sentence}: {', '.join(told)}"]


def _is_not_run(result: ClauseResult, deadline: Deadline) -> bool:
    return result.reason == f"{NOT_RUN}{deadline.sentence}"


NO_GATE: Final = Gate()


def _silent(_doing: str, _done: int, _total: int, _left: float | None = None) -> None:
    """Show nothing."""


def _unannounced(_sentence: str) -> None:
    """Announce no verdict before the record is whole."""


@dataclass(kw_only=True)
class _Run:
    """What a run knows so far; an interrupted one is reported from it."""

    ready: Ready = field(
        default_factory=lambda: Ready(environment={}, specification="", sentences={})
    )
    loaded: list[Loaded] = field(default_factory=list)
    found: dict[str, list[ClauseResult]] = field(default_factory=dict)
    results: dict[str, list[ClauseResult]] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    from_file: tuple[ExpectedFailure, ...] = ()
    today: date = field(default_factory=limits.today)
    written: dict[str, Any] | None = None
    started: str = ""
    deadline: Deadline | None = None
    schedule: Schedule | None = None
    interrupted: bool = False
    finished: bool = False


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
) -> Record:
    """Run every clause on every candidate and return the record.

    ``gate`` names the file of expected failures, and the one to renew from what is found. As many
    as ``jobs`` workers share the work. After ``max_time`` seconds nothing more is asked: the record
    says of each clause that it was not run. They count from ``began`` on the monotonic clock, by
    default from now.

    ``announce`` is called with one line for each candidate, when its last clause has been run and
    others are left: people see verdicts while a long run goes on.

    An interrupt (Ctrl-C) ends the run early: the record holds what was done and says so. Raises
    UsageError for bad input and HarnessError when no worker can run.
    """
    started = time.monotonic()
    run = _Run(started=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))
    if max_time is not None:
        run.deadline = Deadline(limit=max_time, started=started if began is None else began)
    try:
        with WorkerPool(options, jobs=jobs, timeout=timeout, deadline=run.deadline) as pool:
            _prepare(run, pool, options, gate, progress)
            run.schedule = _schedule(run, pool, options, jobs, progress)
            run.schedule.ended = lambda index: _announce(run, index, options, announce)
            run.schedule.run()
        run.finished = True
    except OutOfTime:
        run.finished = True
    except KeyboardInterrupt:
        run.interrupted = not run.finished
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
    for loaded in run.loaded:
        for entry in loaded.expected:
            expectations.check_clause(entry, slugs, f"{loaded.name} ({loaded.target})")


def _schedule(
    run: _Run, pool: WorkerPool, options: RunOptions, jobs: int, progress: ShowProgress
) -> Schedule:
    return Schedule(
        pool=pool,
        loaded=run.loaded,
        judge=lambda loaded, result: _judged(run, loaded, result, options),
        progress=progress,
        jobs=jobs,
        deadline=run.deadline,
        explores=PROFILES[options.profile].explores,
        warns=("failed",) if is_shard(options) else ("failed", "untestable"),
        remembers=bool(options.databases),
    )


def _announce(run: _Run, index: int, options: RunOptions, announce: Callable[[str], None]) -> None:
    """Announce the verdict on one of several candidates, with the reason for it.

    A shard has no verdict, and a run that explores may still find a failure. An expectation of a
    file is judged at the end: it may be met by another candidate.
    """
    if run.schedule is None or len(run.loaded) == 1 or is_shard(options) or run.schedule.explores:
        return
    loaded = run.loaded[index]
    results = [_judged(run, loaded, one, options) for one in run.schedule.results_of(index)]
    stale = expectations.not_holding(
        loaded.expected, {loaded.name: results}, _selection(run, options), today=run.today
    )
    missing = what_is_missing(options, run.deadline, results)
    word, reason = verdict(loaded, results, stale, missing=missing)
    took = sum(result.seconds for result in results)
    applied = sum(result.status != "not-applicable" for result in results)
    announce(f"{loaded.name}: {word}, {applied} clauses in {took:.0f} s ({reason})")


def _judged(run: _Run, loaded: Loaded, result: ClauseResult, options: RunOptions) -> ClauseResult:
    """A result in the light of what is expected; that of a shard may yet fail in another one."""
    entries = (*loaded.expected, *run.from_file)
    judged = judge(result, loaded.name, entries, today=run.today)
    return result if is_shard(options) and judged.status == "unexpected-pass" else judged


def _collect(run: _Run, options: RunOptions) -> None:
    """What was found, also in a run that was cut off."""
    if run.schedule is None:
        return
    for index, loaded in enumerate(run.loaded):
        found = run.found[loaded.name] = run.schedule.results_of(index)
        run.results[loaded.name] = [_judged(run, loaded, one, options) for one in found]
        run.warnings[loaded.name] = run.schedule.warnings.get(index, list(loaded.notes))


def _renew(run: _Run, options: RunOptions, gate: Gate) -> None:
    """Write the file of expected failures that makes the run green, and hold the run against it.

    An interrupted run has not seen everything: nothing is written.
    """
    outcome = UnjudgedRun(
        loaded=run.loaded,
        results=run.found,
        selection=_selection(run, options),
        today=run.today,
        strict=gate.strict,
    )
    interrupted = f"{gate.write} is left as it was: the run was interrupted"
    limited = f"{gate.write} is left as it was: the limit was reached before all clauses were run"
    cut = interrupted if run.interrupted else limited if _limit(run).get("reached") else ""
    renewed = cut or renew(gate, outcome)
    if isinstance(renewed, str):
        run.written = {"file": str(gate.write), "refused": renewed}
        return
    run.written, run.from_file = renewed.told, renewed.entries
    run.results = outcome.judged(renewed.entries)


def _selection(run: _Run, options: RunOptions) -> Selection:
    slugs = selected(run.ready.sentences, options.only, options.skip)
    return Selection(slugs=slugs, dtypes=options.dtypes, devices=options.devices)


def _record(run: _Run, options: RunOptions, seconds: float) -> Record:
    stale_by_name, all_stale = _stale(run, options)
    entries = [
        candidate_entry(
            loaded,
            run.results.get(loaded.name, []),
            run.ready.sentences,
            stale_by_name[loaded.name],
            warnings=run.warnings.get(loaded.name, ()),
            graph_options=options.graph_options,
            interrupted=run.interrupted
            and len(run.results.get(loaded.name, [])) < max(1, len(loaded.planned)),
            missing=what_is_missing(options, run.deadline, run.results.get(loaded.name, [])),
        )
        for loaded in run.loaded
    ]
    if is_shard(options):
        for loaded, entry in zip(run.loaded, entries, strict=True):
            entry["shard"] = judging_entry(loaded)
    report = build_report(
        run.ready,
        options,
        entries,
        stale=all_stale,
        seconds=seconds,
        started=run.started,
        interrupted=run.interrupted,
        more=_more(run, options),
    )
    if run.written is not None:
        report["written_expectations"] = run.written
    return report


def _more(run: _Run, options: RunOptions) -> dict[str, Any]:
    """What the record says of how the run was made, and of what is missing."""
    more: dict[str, Any] = {"options": options_entry(options)}
    if is_shard(options):
        more["shard"] = shard_entry(options, run.from_file)
    if run.deadline is not None:
        more["limit"] = _limit(run)
    if run.schedule is not None and run.schedule.rounds:
        more["explored"] = {"rounds": run.schedule.rounds, "examples": run.schedule.explored}
    return more


def _limit(run: _Run) -> dict[str, Any]:
    if run.deadline is None:
        return {}
    return limit_entry(run.deadline, run.results.values(), loaded=bool(run.loaded))


def _stale(run: _Run, options: RunOptions) -> tuple[dict[str, list[Stale]], list[Stale]]:
    if run.interrupted or is_shard(options) or not run.loaded:
        return {loaded.name: [] for loaded in run.loaded}, []
    declared = {loaded.name: loaded.expected for loaded in run.loaded}
    selection = _selection(run, options)
    return by_candidate(run.from_file, declared, run.results, selection, today=run.today)
