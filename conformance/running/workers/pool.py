"""Several workers with the same loaded targets take jobs in turn.

``serve`` does a job in a task on another machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, Final, Self, TypeVar

from ...base.limits import Deadline
from ...base.trusted_path import looking_only_there
from ...errors import UsageError
from ..databases import keep
from .messages import Loaded, Ready, RunOptions, package_version
from .supervisor import (
    DEFAULT_TIMEOUT,
    HarnessError,
    OutOfTime,
    Supervisor,
    no_interrupt,
    safe_path,
)

# The module imported by the process from which warm workers are forked.
WARM: Final = "conformance.running.workers.warm"
# The environment variable with the promises most candidates make, as a literal.
PROMISED: Final = "CONFORMANCE_PROMISED"
OURS: Final = "attention-conformance"
# Each worker imports torch: about half a gigabyte.
MOST_BY_DEFAULT: Final = 8
_SLICE: Final = 0.2


def warm_context(
    promises: Mapping[str, Any] | None = None, *, isolated: bool = False
) -> BaseContext | None:
    """Return a fork server's context with all modules imported; None where forking is impossible.

    Workers then start in about ten milliseconds. At its start the server computes everything that
    depends on the ``promises`` of a core alone. For ``isolated`` candidates the server imports no
    modules from folders of candidates.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    if promises is not None:
        os.environ[PROMISED] = repr(dict(promises))
        try:
            only = looking_only_there() if isolated else contextlib.nullcontext()
            with safe_path(), only, no_interrupt(context):  # it runs from here on
                pass
        finally:
            del os.environ[PROMISED]
    return context


def end_warm() -> None:
    """End the process that workers are forked from: it may be importing for seconds yet."""
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)  # noqa: SLF001 (no other way)
    if server is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


Job = TypeVar("Job")
Reported = TypeVar("Reported")
# Does one job with a worker until the callable says to stop, and yields the job's reports. Holds
# plain data alone, to be sent to another machine.
DoJob = Callable[[Supervisor, Job, Callable[[], bool]], Iterator[Reported]]


def default_jobs() -> int:
    """The number of processors that this process may use, up to a limit."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_BY_DEFAULT)
    return min(os.cpu_count() or 1, MOST_BY_DEFAULT)


def admit_all(_job: object, _report: object) -> bool:
    """Refuse no report."""
    return True


class WorkerPool:
    """The workers of a run: the first loads the targets, the rest join afterwards.

    Leaving the context ends all workers, at once after an exception or the deadline. ``context``
    starts the processes; by default they are spawned.
    """

    def __init__(
        self,
        options: RunOptions,
        *,
        jobs: int = 1,
        timeout: float = DEFAULT_TIMEOUT,
        deadline: Deadline | None = None,
        context: BaseContext | None = None,
    ) -> None:
        self._options = options
        self._supervisors = [
            Supervisor(options, timeout=timeout, deadline=deadline, context=context)
            for _ in range(jobs)
        ]
        self._loaded: list[Loaded] = []
        self._on_failure: Callable[[Loaded, str], None] = lambda _loaded, _slug: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            for supervisor in self._supervisors:
                supervisor.dismiss()
        for supervisor in self._supervisors:
            supervisor.__exit__(kind, *error)
        keep(self._options.databases, [one for each in self._supervisors for one in each.kept])

    def start(self) -> Ready:
        """Start the first worker; raises HarnessError on failure."""
        return self._supervisors[0].start()

    def load(self) -> list[Loaded]:
        """The targets; raises UsageError for what cannot be used."""
        self._loaded = self._supervisors[0].load()
        return self._loaded

    def announce_failures(self, on_failure: Callable[[Loaded, str], None]) -> None:
        """Call ``on_failure`` for every failure on this machine, in the thread of :meth:`work`.

        ``on_failure`` gets the candidate and the clause before the failure is reduced and
        diagnosed.
        """
        self._on_failure = on_failure

    def work(
        self,
        jobs: Sequence[Job],
        do: DoJob[Job, Reported],
        receive: Callable[[Job, Reported], None],
        *,
        admits: Callable[[Job, Reported | None], bool] = admit_all,
        most: int | None = None,
    ) -> None:
        """Do every job in a worker, at most ``most`` at a time.

        ``do`` runs in a thread; its reports reach ``receive`` in the calling thread, also reports
        of a job cut off by an interrupt. ``admits`` is called in the thread, with None before a job
        begins: the job ends with the first refused report. Raises HarnessError when a worker cannot
        continue.
        """
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        reports: Reports[Job, Reported] = queue.SimpleQueue()
        stop = threading.Event()
        for job in jobs:
            waiting.put(job)

        def on_failure(loaded: Loaded, slug: str) -> None:
            reports.put(lambda: self._on_failure(loaded, slug))

        workers = self._supervisors[: max(1, min(most or len(jobs), len(jobs)))]
        for worker in workers:
            worker.on_failure = on_failure
        with ThreadPoolExecutor(len(workers)) as threads:
            running = {
                threads.submit(self._drive, worker, waiting, reports.put, stop, do, admits): worker
                for worker in workers
            }
            try:
                for future in running:
                    future.add_done_callback(reports.put)
                _receive(reports, len(running), receive)
            finally:
                stop.set()
                while left := wait(running, timeout=_SLICE).not_done:
                    for future in left:
                        running[future].abandon()
                _drain(reports, receive)

    def _drive(
        self,
        supervisor: Supervisor,
        waiting: queue.SimpleQueue[Job],
        put: Callable[[tuple[Job, Reported]], None],
        stop: threading.Event,
        do: DoJob[Job, Reported],
        admits: Callable[[Job, Reported | None], bool],
    ) -> None:
        """Take jobs from the queue until none is left or ``stop`` is set; runs in a thread."""
        if not self._joins(supervisor):
            return
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            if not admits(job, None):
                continue
            with contextlib.closing(self._reports(supervisor, do, job, stop.is_set)) as reports:
                for report in reports:
                    if not admits(job, report):
                        break
                    put((job, report))

    def _reports(
        self,
        supervisor: Supervisor,
        do: DoJob[Job, Reported],
        job: Job,
        stopping: Callable[[], bool],
    ) -> Generator[Reported]:
        yield from do(supervisor, job, stopping)

    def _joins(self, supervisor: Supervisor) -> bool:
        """Load a further worker; False after the deadline."""
        if supervisor.has_loaded:
            return True
        try:
            supervisor.start()
            loaded = supervisor.load_like(self._supervisors[0])
        except OutOfTime:
            return False
        if plans_of(loaded) != plans_of(self._loaded):
            raise HarnessError(CHANGED)
        return True


CHANGED: Final = "the targets changed while they were loaded by one worker after the other"


def plans_of(loaded: Iterable[Loaded]) -> list[list[tuple[str, str, str, bool]]]:
    """Which clauses run; the reasons why others do not may contain an address in memory."""
    return [
        [(clause.id, *clause.place, bool(clause.reason)) for clause in own.planned]
        for own in loaded
    ]


# Reports of jobs, ended threads, and calls to make in the run's thread.
Reports = queue.SimpleQueue[tuple[Job, Reported] | Future[None] | Callable[[], None]]


def _receive(
    reports: Reports[Job, Reported],
    threads: int,
    receive: Callable[[Job, Reported], None],
) -> None:
    """Hand reports on until all threads have ended; short waits let an interrupt through."""
    while threads:
        try:
            event = reports.get(timeout=_SLICE)
        except queue.Empty:
            continue
        if isinstance(event, tuple):
            receive(*event)
            continue
        if not isinstance(event, Future):
            event()
            continue
        threads -= 1
        error = event.exception()
        if isinstance(error, (HarnessError, UsageError, OutOfTime)):
            raise error
        if error is not None:
            msg = f"a worker failed: {type(error).__name__}: {error}"
            raise HarnessError(msg)


def _drain(
    reports: Reports[Job, Reported],
    receive: Callable[[Job, Reported], None],
) -> None:
    while not reports.empty():
        event = reports.get()
        if isinstance(event, tuple):
            receive(*event)


@dataclass(frozen=True, kw_only=True)
class TaskOrder:
    """The orders of a task besides its work.

    ``limit``: the run's limit, and the remaining seconds. ``plan``: the candidate's required plan.
    """

    options: RunOptions
    timeout: float
    limit: tuple[float, float] | None
    version: str
    plan: list[list[tuple[str, str, str, bool]]]
    index: int

    def deadline(self) -> Deadline | None:
        """The end of the run on this machine's clock."""
        if self.limit is None:
            return None
        limit, left = self.limit
        return Deadline(limit=limit, started=time.monotonic() - (limit - left))

    def key(self) -> bytes:
        """Identify a reusable supervisor: options, timeout and visible GPUs."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return pickle.dumps((self.options, self.timeout, visible))


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A supervisor with loaded targets, and its answers at start and loading."""

    supervisor: Supervisor
    ready: Ready
    loaded: list[Loaded]


# The supervisor of this Ray process, which runs tasks in sequence.
_KEPT: Final[dict[bytes, _Kept]] = {}


def serve(
    order: TaskOrder, do: DoJob[Job, Reported] | None, job: Job | None
) -> Iterator[tuple[str, Any]]:
    """Load the targets, or do a job with them, in a process of Ray."""
    try:
        yield from _served(order, do, job)
    except UsageError as error:
        yield "refused", str(error)
    except HarnessError as error:
        yield "broken", str(error)
    except OutOfTime:
        yield "over", None


def _served(
    order: TaskOrder, do: DoJob[Job, Reported] | None, job: Job | None
) -> Iterator[tuple[str, Any]]:
    here = package_version(OURS)
    if here != order.version:
        msg = f"the cluster has {OURS} {here}, and this machine {order.version}: install the same"
        raise UsageError(msg)
    try:
        kept = _kept(order)
        if do is None:
            yield "ready", kept.ready
            yield "loaded", kept.loaded
            return
        if plans_of([kept.loaded[order.index]]) != order.plan:
            raise HarnessError(CHANGED)  # noqa: TRY301 (the supervisor is of no use any more)
        for report in do(kept.supervisor, job, lambda: False):  # type: ignore[arg-type]  # a job
            yield "report", report
    except BaseException:  # a task that is cancelled, too: nothing of it may go on
        _forget()
        raise


def _kept(order: TaskOrder) -> _Kept:
    """Return this process's supervisor with loaded targets; a different order starts a new one."""
    key = order.key()
    if key not in _KEPT:
        _forget()
        supervisor = Supervisor(order.options, timeout=order.timeout, deadline=order.deadline())
        try:
            ready = supervisor.start()
            _KEPT[key] = _Kept(supervisor=supervisor, ready=ready, loaded=supervisor.load())
        except BaseException as error:
            supervisor.__exit__(type(error))
            raise
    kept = _KEPT[key]
    kept.supervisor.limit_to(order.deadline())
    return kept


def _forget() -> None:
    for kept in _KEPT.values():
        kept.supervisor.__exit__(KeyboardInterrupt)
    _KEPT.clear()
