"""Several workers at once, each with the whole catalogue, that take its entries in turn."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ..judging import judge
from ..messages import Loaded, Ready
from ..results import ClauseResult
from ..supervisor import HarnessError, Supervisor
from .options import LoadedEntry, TeethOptions

# Each worker imports torch, which takes some half a gigabyte.
MOST_BY_DEFAULT: Final = 8
# Starting a worker takes as long as some entries.
_ENTRIES_A_WORKER: Final = 8
_CAUGHT_BY: Final = ("MUST", "SHOULD")
_SLICE: Final = 0.2

Heard = Callable[[LoadedEntry, list[ClauseResult], bool], None]


def default_jobs() -> int:
    """As many as there are processors for us."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_BY_DEFAULT)
    return min(os.cpu_count() or 1, MOST_BY_DEFAULT)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a run goes about it: workers, seconds for an answer, and whether one clause is enough."""

    jobs: int
    timeout: float
    first: bool


@dataclass(kw_only=True)
class _Shared:
    """What the threads have in common; ``stop`` ends them at the next result."""

    options: TeethOptions
    pace: Pace
    waiting: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    heard: queue.SimpleQueue[tuple[int, list[ClauseResult], bool] | Exception] = field(
        default_factory=queue.SimpleQueue
    )
    stop: threading.Event = field(default_factory=threading.Event)


class Crew:
    """The workers of a run: the first one loads the catalogue, the others join when it has."""

    def __init__(self, options: TeethOptions, pace: Pace) -> None:
        self._shared = _Shared(options=options, pace=pace)
        self._supervisors = [Supervisor(options, timeout=pace.timeout)]

    def load(self) -> tuple[Ready, list[LoadedEntry]]:
        """The catalogue; raises UsageError for what cannot be used."""
        try:
            ready = self._supervisors[0].start()
            return ready, _entries(self._supervisors[0].load())
        except BaseException:
            self._supervisors[0].abandon()
            raise

    def work(self, loaded: list[LoadedEntry], heard: Heard) -> None:
        """Run every entry; ``heard`` gets each one's results, and whether they are all of them.

        An entry that an interrupt cuts off is heard of, too. Raises HarnessError when a worker
        cannot go on.
        """
        for index in range(len(loaded)):
            self._shared.waiting.put(index)
        useful = -(-len(loaded) // _ENTRIES_A_WORKER)
        for _ in range(min(self._shared.pace.jobs, useful) - 1):
            supervisor = Supervisor(self._shared.options, timeout=self._shared.pace.timeout)
            self._supervisors.append(supervisor)
        threads = [
            threading.Thread(target=_drive, args=(supervisor, loaded, self._shared), daemon=True)
            for supervisor in self._supervisors
        ]
        try:
            for thread in threads:
                thread.start()
            self._listen(loaded, heard)
        finally:
            self._dismiss(threads)
            for index, results, complete in self._left():
                heard(loaded[index], results, complete)

    def _listen(self, loaded: list[LoadedEntry], heard: Heard) -> None:
        """Hand on what the threads say; the wait is short, so that an interrupt gets through."""
        missing = len(loaded)
        while missing:
            try:
                said = self._shared.heard.get(timeout=_SLICE)
            except queue.Empty:
                continue
            if isinstance(said, Exception):
                raise said
            index, results, complete = said
            heard(loaded[index], results, complete)
            missing -= 1

    def _dismiss(self, threads: list[threading.Thread]) -> None:
        self._shared.stop.set()
        while any(thread.is_alive() for thread in threads):
            for supervisor, thread in zip(self._supervisors, threads, strict=True):
                thread.join(_SLICE)
                if thread.is_alive():
                    supervisor.abandon()

    def _left(self) -> Iterator[tuple[int, list[ClauseResult], bool]]:
        while not self._shared.heard.empty():
            said = self._shared.heard.get()
            if not isinstance(said, Exception):
                yield said


def _entries(loaded: list[Loaded]) -> list[LoadedEntry]:
    return [entry for entry in loaded if isinstance(entry, LoadedEntry)]


def _drive(supervisor: Supervisor, loaded: list[LoadedEntry], shared: _Shared) -> None:
    """Take entries until none is left; the thread's last word is an exception if it fails."""
    try:
        with supervisor:
            if not supervisor.has_loaded:
                supervisor.start()
                supervisor.load()
            while not shared.stop.is_set():
                try:
                    index = shared.waiting.get_nowait()
                except queue.Empty:
                    return
                results, complete = _run(supervisor, index, loaded[index], shared)
                shared.heard.put((index, results, complete))
    except Exception as error:  # noqa: BLE001 (it is raised again where it can be told)
        if not shared.stop.is_set():
            shared.heard.put(error if isinstance(error, HarnessError) else _own_fault(error))


def _own_fault(error: Exception) -> HarnessError:
    return HarnessError(f"a worker of the catalogue failed: {type(error).__name__}: {error}")


def _run(
    supervisor: Supervisor, index: int, entry: LoadedEntry, shared: _Shared
) -> tuple[list[ClauseResult], bool]:
    """The results of an entry; a mistake that need be caught only once ends with that clause."""
    results: list[ClauseResult] = []
    for result in supervisor.run_candidate(index):
        if shared.stop.is_set():
            return results, False
        judged = judge(result, entry.name, entry.expected if entry.correct else ())
        results.append(judged)
        if shared.pace.first and not entry.correct and catches(judged):
            break
    return results, True


def catches(result: ClauseResult) -> bool:
    """Whether a result catches a mistake: a clause that must or should hold has failed."""
    return result.status == "failed" and result.level in _CAUGHT_BY
