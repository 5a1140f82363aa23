"""One run of the catalogue from options to record: ``conformance teeth`` but for its views."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...base.results import ClauseResult
from ...running.workers.crew import Crew
from ...running.workers.messages import Ready
from .jobs import Pace, entries_of, run_entries
from .options import REPOSITORY, LoadedEntry, TeethOptions
from .record import Caught, build_record

Progress = Callable[[str, int, int], None]


def _silent(_doing: str, _done: int, _total: int) -> None:
    """Show nothing."""


def run_teeth(options: TeethOptions, pace: Pace, progress: Progress = _silent) -> dict[str, Any]:
    """Run every clause on every entry of the catalogue and return the record.

    An interrupt (Ctrl-C) ends the run early: the record holds what was done and says so. Raises
    UsageError for bad input and HarnessError when no worker can run.
    """
    started = time.monotonic()
    caught = Caught(ready=Ready(environment={}, specification="", sentences={}))
    try:
        with Crew(options, jobs=pace.jobs, timeout=pace.timeout) as crew:
            _go(caught, crew, pace, progress)
    except KeyboardInterrupt:
        caught.interrupted = True
    return build_record(
        caught,
        options,
        first=pace.first,
        judged=_judged(options, caught),
        seconds=time.monotonic() - started,
    )


def _go(caught: Caught, crew: Crew, pace: Pace, progress: Progress) -> None:
    progress("loading", 0, 0)
    caught.ready = crew.start()
    caught.loaded = entries_of(crew.load())
    total = len(caught.loaded)

    def heard(entry: LoadedEntry, results: list[ClauseResult], complete: bool) -> None:  # noqa: FBT001
        caught.results[entry.name] = results
        if complete:
            caught.complete.add(entry.name)
        progress(entry.name, len(caught.complete), total)

    progress("starting", 0, total)
    run_entries(crew, caught.loaded, pace, heard)


def _judged(options: TeethOptions, caught: Caught) -> set[str]:
    """The clauses that must catch something.

    All of them where the repository's catalogue is there, as the shipped mistakes alone do not
    reach every clause; elsewhere those of installed distributions; none where mistakes were chosen
    or not all of them ran. Those that ask nothing on a CPU, where the catalogue runs, need not.
    """
    if options.targets or options.mistakes or options.not_mistakes or caught.interrupted:
        return set()
    whole = any(entry.origin == REPOSITORY for entry in caught.loaded)
    return set(caught.ready.sentences if whole else caught.ready.origins) - caught.ready.elsewhere
