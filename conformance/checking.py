"""One run from targets to record: what ``conformance check`` does but for options and views."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from . import clock, expectations
from .announcing import Outcome
from .errors import UsageError
from .expectations import Selection, Stale
from .expected import ExpectedFailure
from .judging import judge
from .messages import Loaded, Ready, RunOptions
from .renewing import Gate, renew
from .report import build_report, candidate_entry
from .results import ClauseResult
from .selection import check_selection, selected
from .supervisor import DEFAULT_TIMEOUT, HarnessError, Supervisor, WorkerLost

Progress = Callable[[str, int, int], None]
NO_GATE: Final = Gate()
CONTRADICTIONS: Final = "conformance.identification.contradictions:job"


def _silent(_doing: str, _done: int, _total: int) -> None:
    """Show nothing."""


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
    today: date = field(default_factory=clock.today)
    written: dict[str, Any] | None = None
    started: str = ""
    interrupted: bool = False
    finished: bool = False


def check(
    options: RunOptions,
    *,
    gate: Gate = NO_GATE,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Progress = _silent,
) -> dict[str, Any]:
    """Run every clause on every candidate and return the record.

    ``gate`` names the file of expected failures, and the one to renew from what is found.

    An interrupt (Ctrl-C) ends the run early: the record holds what was done and says so. Raises
    UsageError for bad input and HarnessError when no worker can run.
    """
    started = time.monotonic()
    run = _Run(started=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"))
    try:
        with Supervisor(options, timeout=timeout) as supervisor:
            _prepare(run, supervisor, options, gate, progress)
            _go(run, supervisor, progress)
        run.finished = True
    except KeyboardInterrupt:
        run.interrupted = not run.finished
    if gate.write is not None:
        _renew(run, options, gate)
    return _record(run, options, time.monotonic() - started)


def _prepare(
    run: _Run,
    supervisor: Supervisor,
    options: RunOptions,
    gate: Gate,
    progress: Progress,
) -> None:
    progress("starting", 0, 0)
    run.ready = supervisor.start()
    slugs = run.ready.sentences
    check_selection(slugs, options.only, options.skip)
    run.from_file = gate.entries(slugs)
    progress("loading", 0, 0)
    run.loaded = supervisor.load()
    for loaded in run.loaded:
        for entry in loaded.expected:
            expectations.check_clause(entry, slugs, f"{loaded.name} ({loaded.target})")


def _go(run: _Run, supervisor: Supervisor, progress: Progress) -> None:
    total = sum(len(loaded.tasks) for loaded in run.loaded)
    done = 0
    for index, loaded in enumerate(run.loaded):
        results = run.results.setdefault(loaded.name, [])
        found = run.found.setdefault(loaded.name, [])
        entries = (*loaded.expected, *run.from_file)
        progress(loaded.name, done, total)
        for result in supervisor.run_candidate(index):
            found.append(result)
            results.append(judge(result, loaded.name, entries, today=run.today))
            done += 1
            progress(f"{loaded.name} {result.id}", done, total)
        run.warnings[loaded.name] = _warnings(supervisor, index, results)


def _warnings(supervisor: Supervisor, index: int, results: Sequence[ClauseResult]) -> list[str]:
    """Where a declaration contradicts what its candidate does; asked where a MUST is not met."""
    told = [
        result
        for result in results
        if result.level == "MUST" and result.status in ("failed", "untestable")
    ]
    lost = any(
        result.violation is not None and result.violation.kind in ("hung", "crashed")
        for result in told
    )
    if not told or lost:
        return []
    try:
        found: list[str] = supervisor.perform(index, CONTRADICTIONS)
    except (WorkerLost, UsageError, HarnessError):  # the verdict stands without a warning
        return []
    return found


def _renew(run: _Run, options: RunOptions, gate: Gate) -> None:
    """Write the file of expected failures that makes the run green, and hold the run against it.

    An interrupted run has not seen everything: nothing is written.
    """
    outcome = Outcome(
        loaded=run.loaded,
        results=run.found,
        selection=_selection(run, options),
        today=run.today,
        strict=gate.strict,
    )
    interrupted = f"{gate.write} is left as it was: the run was interrupted"
    renewed = interrupted if run.interrupted else renew(gate, outcome)
    if isinstance(renewed, str):
        run.written = {"file": str(gate.write), "refused": renewed}
        return
    run.written, run.from_file = renewed.told, renewed.entries
    run.results = outcome.judged(renewed.entries)


def _selection(run: _Run, options: RunOptions) -> Selection:
    slugs = selected(run.ready.sentences, options.only, options.skip)
    return Selection(slugs=slugs, dtypes=options.dtypes, devices=options.devices)


def _record(run: _Run, options: RunOptions, seconds: float) -> dict[str, Any]:
    stale_by_name, all_stale = _stale(run, options)
    entries = [
        candidate_entry(
            loaded,
            run.results.get(loaded.name, []),
            run.ready.sentences,
            stale_by_name[loaded.name],
            warnings=run.warnings.get(loaded.name, ()),
            beside=options.beside,
            interrupted=run.interrupted
            and len(run.results.get(loaded.name, [])) < max(1, len(loaded.tasks)),
        )
        for loaded in run.loaded
    ]
    report = build_report(
        run.ready,
        options,
        entries,
        stale=all_stale,
        seconds=seconds,
        started=run.started,
        interrupted=run.interrupted,
    )
    return report if run.written is None else {**report, "written_expectations": run.written}


def _stale(run: _Run, options: RunOptions) -> tuple[dict[str, list[Stale]], Sequence[Stale]]:
    """Expectations that do not hold by the candidate they redden, and all of them."""
    by_name: dict[str, list[Stale]] = {loaded.name: [] for loaded in run.loaded}
    if run.interrupted:
        return by_name, []
    selection = _selection(run, options)
    found = expectations.not_holding(run.from_file, run.results, selection, today=run.today)
    for entry in found:
        for name, stale in by_name.items():
            if entry.names(name):
                stale.append(entry)
    for loaded in run.loaded:
        own = {loaded.name: run.results[loaded.name]}
        declared = expectations.not_holding(loaded.expected, own, selection, today=run.today)
        by_name[loaded.name].extend(declared)
        found = [*found, *(entry.of(loaded.name) for entry in declared)]
    return by_name, found
