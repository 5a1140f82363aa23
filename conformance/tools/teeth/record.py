"""A run of the catalogue, from its options to its record (a JSON document) and its exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...base.record import EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_OK, EXIT_RED, SCHEMA, TOOL
from ...base.results import ClauseResult, plain
from ...running.workers.messages import Ready, package_version
from ...running.workers.pool import WorkerPool
from ...session.checking import MakePool
from .jobs import REPOSITORY, LoadedEntry, Pace, TeethOptions, catches, entries_of, run_entries

# The lists of the summary that must be empty.
_RED: Final = ("missed", "primary_missed", "toothless_judged", "flagged", "not_run")
# Of the results of a clause in several dtypes the first in this order counts.
_LOUDEST: Final = ("error", "failed", "expected-failure", "untestable", "passed")


@dataclass(kw_only=True)
class TeethProgress:
    """The results of a run so far; an interrupted run is recorded from them as well."""

    ready: Ready
    loaded: list[LoadedEntry] = field(default_factory=list)
    results: dict[str, list[ClauseResult]] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    interrupted: bool = False


def build_record(
    run: TeethProgress,
    options: TeethOptions,
    *,
    first: bool,
    judged: Collection[str],
    seconds: float,
) -> dict[str, Any]:
    """The whole record, as data that JSON can hold.

    ``judged`` are the slugs of the clauses whose lack of any mistake is a finding.
    """
    ran = [entry for entry in run.loaded if entry.name in run.results]
    mistakes = [_mistake(entry, run) for entry in ran if not entry.correct]
    correct = [_correct(entry, run) for entry in ran if entry.correct]
    clauses = _clauses(run, mistakes)
    record: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "kind": "teeth",
            "tool": {
                "name": TOOL,
                "version": package_version(TOOL),
                "specification": run.ready.specification,
            },
            "environment": dict(run.ready.environment),
            "profile": options.profile,
            "seed": options.seed,
            "first": first,
            "selection": {
                "targets": list(options.targets),
                "only": list(options.mistakes),
                "skip": list(options.not_mistakes),
                "correct": list(options.correct),
            },
            "seconds": round(seconds, 1),
            "interrupted": run.interrupted,
            "clauses": clauses,
            "mistakes": mistakes,
            "correct": correct,
            "summary": _summary(run, clauses, mistakes, correct, judged),
        }
    )
    return record


def _statuses(results: Iterable[ClauseResult]) -> dict[str, ClauseResult]:
    """A result a clause, the loudest; clauses that do not apply are left out."""
    loudest: dict[str, ClauseResult] = {}
    for result in results:
        if result.status == "not-applicable":
            continue
        other = loudest.get(result.id)
        if other is None or _loudness(result) < _loudness(other):
            loudest[result.id] = result
    return loudest


def _loudness(result: ClauseResult) -> int:
    return _LOUDEST.index(result.status) if result.status in _LOUDEST else 0


def _row(entry: LoadedEntry, run: TeethProgress) -> dict[str, Any]:
    statuses = _statuses(run.results[entry.name])
    return {
        "name": entry.name,
        "kind": entry.kind,
        "origin": entry.origin,
        "complete": entry.name in run.complete,
        "clauses": {slug: result.status for slug, result in statuses.items()},
        "reasons": {
            slug: result.reason
            for slug, result in statuses.items()
            if result.status not in ("passed", "not-applicable")
        },
        "seconds": round(sum(result.seconds for result in run.results[entry.name]), 2),
    }


def _mistake(entry: LoadedEntry, run: TeethProgress) -> dict[str, Any]:
    results = run.results[entry.name]
    catching = list(dict.fromkeys(result.id for result in results if catches(result)))
    return {
        **_row(entry, run),
        "sentence": entry.sentence,
        "fix": entry.fix,
        "primary": entry.primary,
        "also": list(entry.also),
        "caught": bool(catching),
        "primary_caught": entry.primary in catching or not entry.primary,
        "caught_by": catching,
        "first": catching[0] if catching else "",
        "primary_reason": _why_missed(entry, results),
    }


def _why_missed(entry: LoadedEntry, results: Sequence[ClauseResult]) -> str:
    """The primary clause's result instead of a failure, or ""."""
    own = [result for result in results if result.id == entry.primary]
    if not own or any(catches(result) for result in own):
        return ""
    return f"{own[0].status}: {own[0].reason}" if own[0].reason else own[0].status


def _correct(entry: LoadedEntry, run: TeethProgress) -> dict[str, Any]:
    results = run.results[entry.name]
    red = [result for result in results if result.status in ("failed", "unexpected-pass")]
    return {
        **_row(entry, run),
        "flagged": list(dict.fromkeys(result.id for result in red if result.level == "MUST")),
        "should_failed": list(dict.fromkeys(result.id for result in red if result.level != "MUST")),
    }


def _clauses(run: TeethProgress, mistakes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every clause with its caught mistakes, and the mistakes with the clause as primary."""
    ready = run.ready
    return [
        {
            "id": slug,
            "level": ready.levels.get(slug, ""),
            "sentence": sentence,
            "origin": ready.origins.get(slug, ""),
            "caught": [row["name"] for row in mistakes if slug in row["caught_by"]],
            "primary_of": [row["name"] for row in mistakes if slug == row["primary"]],
        }
        for slug, sentence in ready.sentences.items()
    ]


def _summary(
    run: TeethProgress,
    clauses: Sequence[Mapping[str, Any]],
    mistakes: Sequence[Mapping[str, Any]],
    correct: Sequence[Mapping[str, Any]],
    judged: Collection[str],
) -> dict[str, Any]:
    rows = [*mistakes, *correct]
    ended = [row for row in mistakes if row["complete"]]
    toothless = [clause["id"] for clause in clauses if not clause["caught"]]
    return {
        "mistakes": len(mistakes),
        "caught": sum(row["caught"] for row in mistakes),
        "missed": [row["name"] for row in ended if not row["caught"]],
        "primary_missed": [row["name"] for row in ended if not row["primary_caught"]],
        "clauses": len(clauses),
        "toothless": toothless,
        "toothless_judged": [slug for slug in toothless if slug in judged],
        "elsewhere": [slug for slug in toothless if slug in run.ready.elsewhere],
        "correct": len(correct),
        "flagged": [row["name"] for row in correct if row["flagged"]],
        "should_failed": [row["name"] for row in correct if row["should_failed"]],
        "errors": [row["name"] for row in rows if "error" in row["clauses"].values()],
        "not_run": [entry.name for entry in run.loaded if entry.name not in run.complete],
    }


def exit_code(record: Mapping[str, Any]) -> int:
    """0 when nothing escapes and nothing correct is flagged; 3 when the harness failed."""
    summary = record["summary"]
    if record["interrupted"]:
        return EXIT_INTERRUPTED
    if summary["errors"]:
        return EXIT_HARNESS
    return EXIT_RED if any(summary[name] for name in _RED) else EXIT_OK


Progress = Callable[[str, int, int], None]


def run_teeth(
    options: TeethOptions,
    pace: Pace,
    progress: Progress = lambda _step, _done, _total: None,
    make_pool: MakePool = WorkerPool,
) -> dict[str, Any]:
    """Run every clause on every entry of the catalogue and return the record.

    ``make_pool`` makes the workers. An interrupt (Ctrl-C) ends the run early: the record holds the
    results so far and says so. Raises UsageError for bad input and HarnessError when no worker can
    run.
    """
    started = time.monotonic()
    run = TeethProgress(ready=Ready(environment={}, specification="", sentences={}))
    try:
        with make_pool(options, jobs=pace.jobs, timeout=pace.timeout, deadline=None) as pool:
            _go(run, pool, pace, progress)
    except KeyboardInterrupt:
        run.interrupted = True
    return build_record(
        run,
        options,
        first=pace.first,
        judged=_judged(options, run),
        seconds=time.monotonic() - started,
    )


def _go(run: TeethProgress, pool: WorkerPool, pace: Pace, progress: Progress) -> None:
    progress("loading", 0, 0)
    run.ready = pool.start()
    run.loaded = entries_of(pool.load())
    total = len(run.loaded)

    def report(entry: LoadedEntry, results: list[ClauseResult], complete: bool) -> None:  # noqa: FBT001
        run.results[entry.name] = results
        if complete:
            run.complete.add(entry.name)
        progress(entry.name, len(run.complete), total)

    progress("starting", 0, total)
    run_entries(pool, run.loaded, pace, report)


def _judged(options: TeethOptions, run: TeethProgress) -> set[str]:
    """The clauses that must catch something.

    With the repository's catalogue all clauses: the shipped mistakes alone do not reach every
    clause. Elsewhere the clauses of installed distributions; none if mistakes were selected or the
    run was interrupted. Clauses without a problem in one process on a CPU, where the catalogue
    runs, are exempt: ``candidates/ranks/mistakes.py`` has the mistakes about ranks.
    """
    if options.targets or options.mistakes or options.not_mistakes or run.interrupted:
        return set()
    whole = any(entry.origin == REPOSITORY for entry in run.loaded)
    return set(run.ready.sentences if whole else run.ready.origins) - run.ready.elsewhere
