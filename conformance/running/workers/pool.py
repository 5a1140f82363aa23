"""Several workers at once, each with the same targets loaded, that take jobs in turn."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from ...base.limits import Deadline
from .messages import Loaded, Ready, RunOptions
from .supervisor import DEFAULT_TIMEOUT, HarnessError, OutOfTime, Supervisor

# Each worker imports torch, which takes some half a gigabyte.
MOST_BY_DEFAULT: Final = 8
_SLICE: Final = 0.2

Job = TypeVar("Job")
Said = TypeVar("Said")


def default_jobs() -> int:
    """As many as there are processors for us."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_BY_DEFAULT)
    return min(os.cpu_count() or 1, MOST_BY_DEFAULT)


@dataclass(frozen=True, kw_only=True)
class JobContext(Generic[Said]):
    """What a job is done with: a worker, whom to tell, and whether to stop at the next result."""

    supervisor: Supervisor
    tell: Callable[[Said], None]
    stopping: Callable[[], bool]


@dataclass(kw_only=True)
class _Shared(Generic[Job, Said]):
    """What the threads have in common; ``stop`` ends them at the next result."""

    do: Callable[[JobContext[Said], Job], None]
    waiting: queue.SimpleQueue[Job]
    heard: queue.SimpleQueue[tuple[Job, Said] | Exception | None] = field(
        default_factory=queue.SimpleQueue
    )
    stop: threading.Event = field(default_factory=threading.Event)


class WorkerPool:
    """The workers of a run: the first one loads the targets, the others join when it has.

    As a context it ends them all, at once where an exception or the deadline ends the run.
    """

    def __init__(
        self,
        options: RunOptions,
        *,
        jobs: int = 1,
        timeout: float = DEFAULT_TIMEOUT,
        deadline: Deadline | None = None,
    ) -> None:
        self._options = options
        self._jobs = jobs
        self._timeout = timeout
        self._deadline = deadline
        self._supervisors = [self._supervisor()]
        self._loaded: list[Loaded] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            for supervisor in self._supervisors:
                supervisor.dismiss()
        for supervisor in self._supervisors:
            supervisor.__exit__(kind, error, trace)

    def start(self) -> Ready:
        """Start the first worker; raises HarnessError when it cannot."""
        return self._supervisors[0].start()

    def load(self) -> list[Loaded]:
        """The targets; raises UsageError for what cannot be used."""
        self._loaded = self._supervisors[0].load()
        return self._loaded

    def work(
        self,
        jobs: Sequence[Job],
        do: Callable[[JobContext[Said], Job], None],
        heard: Callable[[Job, Said], None],
        *,
        most: int | None = None,
    ) -> None:
        """Do every job in some worker, at most ``most`` at a time.

        ``do`` runs in a thread; what it tells reaches ``heard`` in this one, and also what is told
        when an interrupt cuts a job off. Raises HarnessError when a worker cannot go on.
        """
        shared = _Shared[Job, Said](do=do, waiting=queue.SimpleQueue())
        for job in jobs:
            shared.waiting.put(job)
        many = max(1, min(self._jobs if most is None else most, self._jobs, len(jobs)))
        while len(self._supervisors) < many:
            self._supervisors.append(self._supervisor())
        crew = self._supervisors[:many]
        threads = [
            threading.Thread(target=self._drive, args=(one, shared), daemon=True) for one in crew
        ]
        try:
            for thread in threads:
                thread.start()
            _listen(shared, len(threads), heard)
        finally:
            _dismiss(shared, crew, threads)
            for job, said in _left(shared):
                heard(job, said)

    def _supervisor(self) -> Supervisor:
        return Supervisor(self._options, timeout=self._timeout, deadline=self._deadline)

    def _drive(self, supervisor: Supervisor, shared: _Shared[Job, Said]) -> None:
        """Take jobs until none is left; the last word is None, or an exception if it fails."""
        try:
            if self._joins(supervisor):
                self._take_turns(supervisor, shared)
        except Exception as error:  # noqa: BLE001 (it is raised again where it can be told)
            shared.heard.put(error if isinstance(error, HarnessError) else _own_fault(error))
        else:
            shared.heard.put(None)

    def _take_turns(self, supervisor: Supervisor, shared: _Shared[Job, Said]) -> None:
        while not shared.stop.is_set():
            try:
                job = shared.waiting.get_nowait()
            except queue.Empty:
                return

            def tell(said: Said, job: Job = job) -> None:
                shared.heard.put((job, said))

            hands = JobContext(supervisor=supervisor, tell=tell, stopping=shared.stop.is_set)
            shared.do(hands, job)

    def _joins(self, supervisor: Supervisor) -> bool:
        """Load a further worker; False when there is no time for that any more."""
        if supervisor.has_loaded:
            return True
        try:
            supervisor.start()
            found = supervisor.load()
        except OutOfTime:
            return False
        if _asked(found) != _asked(self._loaded):
            msg = "the targets changed while they were loaded by one worker after the other"
            raise HarnessError(msg)
        return True


def _asked(loaded: Sequence[Loaded]) -> list[list[tuple[str, str, str, bool]]]:
    """Which clauses are asked of whom; why others are not may be told with an address in memory."""
    return [
        [(task.id, task.dtype, task.device, bool(task.reason)) for task in one.planned]
        for one in loaded
    ]


def _listen(shared: _Shared[Job, Said], threads: int, heard: Callable[[Job, Said], None]) -> None:
    """Hand on what the threads say; the wait is short, so that an interrupt gets through."""
    while threads:
        try:
            said = shared.heard.get(timeout=_SLICE)
        except queue.Empty:
            continue
        if isinstance(said, Exception):
            raise said
        if said is None:
            threads -= 1
        else:
            heard(*said)


def _dismiss(
    shared: _Shared[Job, Said], crew: Sequence[Supervisor], threads: Sequence[threading.Thread]
) -> None:
    shared.stop.set()
    while any(thread.is_alive() for thread in threads):
        for supervisor, thread in zip(crew, threads, strict=True):
            thread.join(_SLICE)
            if thread.is_alive():
                supervisor.abandon()


def _left(shared: _Shared[Job, Said]) -> Iterator[tuple[Job, Said]]:
    while not shared.heard.empty():
        said = shared.heard.get()
        if isinstance(said, tuple):
            yield said


def _own_fault(error: Exception) -> HarnessError:
    return HarnessError(f"a worker failed: {type(error).__name__}: {error}")
