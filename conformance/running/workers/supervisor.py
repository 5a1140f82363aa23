"""Drives one worker process: restarts it when a candidate hangs or dies, and reports this."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, Final, Self

from ...base.limits import NOT_FINISHED, NOT_RUN, Deadline
from ...base.patience import Patience, process_state, starved_seconds
from ...base.printable_text import ending_text, size_text
from ...base.results import ClauseResult, result_from_json
from ...base.trusted_path import looking_only_there, whole_path
from ...errors import UsageError
from ..clause_run import PlannedClause, Progress
from ..isolation.zygote import new_client
from .messages import Event, Inbox, LastWords, Loaded, Order, Ready, RunOptions
from .usage import MemoryLimit, kill_group
from .worker import ALIVE, BROKEN_DEVICE, KEPT, OURS, SAFE_PATH, SAFE_PATH_BY_US, serve

DEFAULT_TIMEOUT: Final = 30.0
_AFTER_A_HANG: Final = 5.0
_OWN_WORK: Final = 60.0  # seconds that the harness itself may compute between two calls
_LOADING_FACTOR: Final = 2.0  # importing a library and building a module takes longer than a call
_START_LIMIT: Final = 300.0  # importing torch from a cold disk
_FAREWELL: Final = 2.0
_STARTS: Final = 20
_MOMENT: Final = 0.05
_IN_A_ROW: Final = 3
_HANGS_IN_ALL: Final = 8  # each of them takes seconds
_GONE: Final = "the worker is gone"
UNLIMITED: Final = Order()
_STARTING: Final = threading.Lock()  # a process inherits what is set for all threads


class HarnessError(Exception):
    """The harness itself cannot go on: one sentence, exit code 3."""


class OutOfTime(Exception):  # noqa: N818 (no error: the run's time is up)
    """The run's limit is reached and the worker stopped; the text names the work, if known."""


class WorkerLost(Exception):  # noqa: N818 (no error of the harness: the candidate hung or died)
    """The worker gave no answer; ``kind`` is ``hung`` or ``crashed``."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Supervisor:
    """A supervisor of one worker process: loads the targets there and runs clauses one by one.

    Waiting for the worker raises OutOfTime after the run's ``deadline``.
    """

    def __init__(
        self,
        options: RunOptions,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        deadline: Deadline | None = None,
        context: BaseContext | None = None,
    ) -> None:
        self._context = context or multiprocessing.get_context("spawn")
        self._options = options
        self._timeout = timeout
        self._deadline = deadline
        self._process: BaseProcess | None = None
        self._inbox: Inbox | None = None
        self._last_words: LastWords | None = None
        self._scratch: str | None = None
        self._loaded: list[Loaded] = []
        self._memory: MemoryLimit | None = None
        self._lost = ""  # how the last clause lost the worker, also after its failure was found
        self._abandoned = False
        self._is_ours = False  # whether the candidate's last call has ended, where ends are told
        self._starved_before = 0.0  # of workers that have ended
        # Failing problems for the database, written when no candidate can read them any more.
        self.kept: list[tuple[bytes, bytes]] = []
        # Called with each failure found, before its reduction and diagnosis.
        self.on_failure: Callable[[Loaded, str], None] = lambda _loaded, _slug: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self.is_over:
            self._say_stop()
        self._kill()

    def start(self) -> Ready:
        """Start the worker; raises HarnessError on failure, UsageError if the worker refuses."""
        self._memory, self._abandoned = None, False
        zygote = new_client() if self._options.isolated else None
        own_end, worker_end = self._context.Pipe()
        listen, output = self._context.Pipe(duplex=False)
        with contextlib.suppress(OSError):  # the worker says so if it needs one
            self._scratch = tempfile.mkdtemp(prefix="conformance-")
        # An isolated candidate has this process's module path, its judge does not.
        path = None if zygote is None else whole_path()
        only = contextlib.nullcontext() if zygote is None else looking_only_there()
        arguments = (worker_end, output, zygote, self._scratch, path)
        context: Any = self._context  # every one has processes
        process = context.Process(target=serve, args=arguments, name="conformance-worker")
        with (
            _STARTING,
            safe_path(),
            only,
            _hide_script(),
            _cleaning_quietly(),
            no_interrupt(context),
        ):
            start_process(process)
            self._process, self._inbox = process, Inbox(own_end)
        worker_end.close()
        output.close()
        if zygote is not None:
            zygote.close()
        self._last_words = LastWords(listen)
        try:
            ready: Ready = self._answer("ready", lambda: _START_LIMIT)
        except WorkerLost as lost:
            msg = f"the worker process could not start: {lost}"
            raise HarnessError(msg) from None
        self._memory = MemoryLimit(process.pid or 0, self._options.max_memory)
        if self._memory.used > self._memory.most:
            took, most = size_text(self._memory.used), size_text(self._memory.most)
            self._kill()
            msg = f"a worker takes {took} before it loads anything, more than {most}: allow it more"
            raise UsageError(msg)
        return ready

    def load(self) -> list[Loaded]:
        """Load the targets; raises UsageError for bad, hanging or crashing targets."""
        step, name = "loading", ""

        def limit() -> float:
            return self._timeout * (1.0 if step == "trying" else _LOADING_FACTOR)

        began = time.monotonic()

        def on_event(tag: str, payload: Any) -> None:
            nonlocal step, name, began
            step, name, began = tag, payload, time.monotonic()

        while True:
            try:
                self._send("load", self._options)
                self._loaded = self._answer("loaded", limit, on_event)
            except OutOfTime:
                after = f"{time.monotonic() - began:.0f} s"
                msg = f"{step} {name} had not ended after {after}" if name else ""
                raise OutOfTime(msg) from None
            except WorkerLost as lost:
                if step not in ("building", "trying"):
                    hint = "; --timeout sets the limit" if lost.kind == "hung" else ""
                    msg = f"{step} {name} {lost}{hint}"
                    raise UsageError(msg) from None
                # A crash becomes a verdict: load again without building or trying.
                self._options = dataclasses.replace(self._options, preflight=False)
                self.start()
            else:
                return self._loaded

    def _answer(
        self,
        expected: str,
        limit: Callable[[], float],
        on_event: Callable[[str, Any], None] = lambda _step, _what: None,
    ) -> Any:
        """Return the payload of the ``expected`` event; earlier events go to ``on_event``.

        Raises UsageError when the worker refuses, HarnessError when the harness fails there.
        """
        while True:
            tag, payload = self._event(limit())
            if tag == expected:
                return payload
            if tag == "refused":
                raise UsageError(str(payload))
            if tag == "broken":
                raise HarnessError(str(payload))
            if tag != ALIVE:
                on_event(tag, payload)

    def run_candidate(
        self, index: int, numbers: Sequence[int] | None = None, order: Order = UNLIMITED
    ) -> Iterator[ClauseResult]:
        """Run the clauses of a candidate in turn; a lost worker is replaced.

        ``numbers`` are indices into the planned clauses and give the order of the results.
        """
        every = range(len(self._loaded[index].planned)) if numbers is None else numbers
        return self.run_each(index, ((number, order) for number in every))

    def run_each(self, index: int, asked: Iterable[tuple[int, Order]]) -> Iterator[ClauseResult]:
        """Yield the result of every (clause number, order) pair; ``asked`` is read lazily."""
        in_a_row, hangs, limit, last = 0, 0, self._timeout, ""
        planned = self._loaded[index].planned
        for number, order in asked:
            clause = planned[number]
            if clause.reason:
                yield clause.not_applicable()
            elif in_a_row >= _IN_A_ROW:
                reason = f"{NOT_RUN}the candidate {last} in {_IN_A_ROW} clauses in a row"
                yield clause.result("untestable", reason)
            elif hangs >= _HANGS_IN_ALL:
                reason = f"{NOT_RUN}the candidate hung in {_HANGS_IN_ALL} clauses"
                yield clause.result("untestable", reason)
            else:
                self._lost = ""
                result = self._run(index, number, order, limit)
                kind = self._lost or ("" if result.violation is None else result.violation.kind)
                lost = kind in ("hung", "crashed")
                in_a_row = in_a_row + 1 if lost else 0
                last = kind if lost else last
                hangs += kind == "hung"
                if kind == "hung" and self._process is None:  # a graph's worker waits for no hang
                    limit = min(limit, _AFTER_A_HANG)
                yield result

    def explain(self, index: int, number: int, failure: ClauseResult) -> ClauseResult:
        """The failure of a deferred run, reduced and diagnosed."""
        order = Order(failure=failure.as_json())
        return self._run(index, number, order, self._timeout)

    def _run(self, index: int, number: int, order: Order, limit: float) -> ClauseResult:
        loaded = self._loaded[index]
        clause, started = loaded.planned[number], time.perf_counter()
        progress = Progress(on_failure=lambda: self.on_failure(loaded, clause.id))
        if order.failure is not None:
            progress.failure = result_from_json(order.failure)
        if self._deadline is not None:
            order = dataclasses.replace(order, seconds=self._left(), search=self._deadline.search)
        try:
            if order.seconds == 0.0:
                raise OutOfTime  # noqa: TRY301 (as if the worker had run out of time)
            self._revive()
            self._send("run", (index, number, order))
            while True:
                tag, payload = self._event(limit)
                if tag in ("result", "broken"):
                    return self._result(clause, tag, payload)
                self._note(progress, tag, payload)
        except WorkerLost as lost:
            self._lost = lost.kind
            seconds = time.perf_counter() - started
            return progress.lost(clause, lost.kind, f"the candidate {lost}", seconds)
        except OutOfTime:
            return self._mark_cut_short(progress.cut(clause, time.perf_counter() - started))
        except (UsageError, HarnessError) as error:
            return clause.result("untestable", f"the candidate could not be loaded again: {error}")

    def _note(self, progress: Progress, tag: str, payload: Any) -> None:
        if tag == KEPT:
            self.kept += payload
        elif tag not in (ALIVE, OURS):
            progress.receive(tag, payload)

    def _result(self, clause: PlannedClause, tag: str, payload: Any) -> ClauseResult:
        if tag == "broken":
            return clause.result("error", f"the harness failed: {payload}")
        return self._mark_cut_short(result_from_json(payload))

    def _mark_cut_short(self, result: ClauseResult) -> ClauseResult:
        """Mark a result as not run or not finished if the run's time limit cut the clause short."""
        if result.planned is None or self._deadline is None:
            return result
        if not result.examples and not result.reason:
            reason = f"{NOT_RUN}{self._deadline.sentence}"
            return result.replace(reason=reason, planned=None)
        count = f"{result.examples} of about {result.planned}"
        examples = f"after {count} examples, none of which failed"
        more = f"; {result.reason}" if result.reason else ""
        return result.replace(reason=f"{NOT_FINISHED}{self._deadline.sentence} {examples}{more}")

    def perform(
        self,
        index: int,
        job: str,
        argument: Any = None,
        on_event: Callable[[str, Any], None] = lambda _step, _what: None,
    ) -> Any:
        """Run ``job(plan, argument, on_step)`` in the worker, for a candidate's plan.

        ``job`` is ``conformance.module:function``; argument and result are plain data. A step of
        the job is an event and restarts the time limit. Raises WorkerLost when the candidate hangs
        or dies, UsageError when the job refuses, HarnessError when the job fails.
        """
        self._revive()
        self._send("perform", (index, job, argument))
        return self._answer("performed", lambda: self._timeout, on_event)

    def _revive(self) -> None:
        """Start a worker and load the targets again, if the last worker was stopped."""
        if self._process is None:
            before = [loaded.planned for loaded in self._loaded]
            self._options = self._options.knowing(self._loaded)
            self.start()
            if [loaded.planned for loaded in self.load()] != before:
                msg = "its targets changed while they were checked"
                raise HarnessError(msg)

    def _send(self, command: str, payload: Any) -> None:
        if self._inbox is None:
            raise HarnessError(_GONE)
        self._is_ours = False
        try:
            self._inbox.connection.send((command, payload))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def _event(self, limit: float) -> Event:
        """Return the next event; stops the worker and raises WorkerLost at the limit.

        The limit counts seconds in which the machine gives the worker a processor: see Patience.
        """
        inbox, process = self._inbox, self._process
        if inbox is None or process is None:
            raise HarnessError(_GONE)
        pid, last = process.pid or 0, math.inf if self._deadline is None else self._deadline.last
        limit = max(limit, _OWN_WORK) if self._is_ours else limit
        patience = Patience(limit, lambda: process_state(pid))
        while True:
            is_alive = process.is_alive()
            try:
                message = inbox.next(self._pause(patience, last) if is_alive else _FAREWELL)
            except EOFError:
                raise self._died() from None
            except TimeoutError:
                if not is_alive:  # what it has started keeps its connection open
                    raise self._died() from None
            else:
                self._require_memory()
                return self._read(message)
            if patience.is_over():
                self._kill()
                msg = f"gave no answer within {limit:g} s and was stopped"
                raise WorkerLost(msg, kind="hung")
            if self._deadline is not None and time.monotonic() >= last:
                if self._left() == 0.0 and time.monotonic() >= self._deadline.last:
                    self._kill()
                    raise OutOfTime
                last = self._deadline.last
            self._require_memory()

    def _read(self, message: bytes) -> Event:
        """Decode a message; a candidate writing over the worker's connection is stopped."""
        try:
            tag, payload = pickle.loads(message)  # noqa: S301 (the worker's, which runs user's code)
        except Exception as error:  # what other bytes make of the messages is anything
            self._kill()
            msg = "wrote over what its process sends, and was stopped"
            raise WorkerLost(msg, kind="crashed") from error
        if tag in (ALIVE, OURS):
            self._is_ours = tag == OURS
        return tag, payload

    def _pause(self, patience: Patience, last: float) -> float:
        pause = min(patience.pause(), last - time.monotonic())
        return max(0.0, pause if self._memory is None else min(pause, self._memory.pause))

    def _require_memory(self) -> None:
        if self._memory is not None and self._memory.is_exceeded():
            self._kill()
            msg = f"took more than {size_text(self._memory.most)} of memory and was stopped"
            raise WorkerLost(msg, kind="crashed")

    def _died(self) -> WorkerLost | OutOfTime:
        if self._abandoned:
            self._kill()
            return OutOfTime()
        process = self._process
        if process is not None:
            process.join(_FAREWELL)
        status = None if process is None else process.exitcode
        self._kill()
        words = "" if self._last_words is None else self._last_words.line()
        if status == BROKEN_DEVICE:
            return WorkerLost(f"broke its device: {words}", kind="crashed")
        quoted = f", after printing {words!r}" if words else ""
        return WorkerLost(f"{ending_text(status)}{quoted}", kind="crashed")

    @property
    def is_over(self) -> bool:
        """Whether the run's time is up."""
        return self._deadline is not None and self._left() == 0.0

    def _left(self) -> float:
        """Return the seconds left, infinite without a deadline; report starved seconds."""
        if self._deadline is None:
            return math.inf
        waited = self._starved()
        if waited:
            self._deadline.starved[id(self)] = self._starved_before + waited
        return self._deadline.left()

    def _starved(self) -> float:
        pid = None if self._process is None else self._process.pid
        return 0.0 if pid is None else starved_seconds(pid)

    @property
    def deadline(self) -> Deadline | None:
        """The deadline of the run."""
        return self._deadline

    @property
    def has_loaded(self) -> bool:
        """Whether the targets are loaded."""
        return bool(self._loaded)

    def adopt(self, loaded: list[Loaded]) -> None:
        """Take over another machine's loaded targets; after the deadline there is no difference."""
        self._loaded = loaded

    def load_like(self, first: Supervisor) -> list[Loaded]:
        """Load the targets as another worker of the run did, which may have built none."""
        options = dataclasses.replace(self._options, preflight=first._options.preflight)
        self._options = options.knowing(first._loaded)
        return self.load()

    def limit_to(self, deadline: Deadline | None) -> None:
        """Work until another deadline from now on."""
        self._deadline = deadline

    def abandon(self) -> None:
        """End the worker at once, from any thread: a waiting caller gets OutOfTime."""
        self._abandoned = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ValueError):  # it has ended by itself meanwhile
                kill_group(process)

    def dismiss(self) -> None:
        """Let the worker end by itself, without waiting for that."""
        if self._inbox is not None and self._process is not None:
            with contextlib.suppress(OSError):
                self._inbox.connection.send(("stop", None))

    def _say_stop(self) -> None:
        self.dismiss()
        if self._process is not None:
            self._process.join(_FAREWELL)

    def _kill(self) -> None:
        """Kill the worker's process group: a candidate may be stuck where no signal is handled."""
        self._starved_before += self._starved()
        process, self._process = self._process, None
        if process is not None:
            kill_group(process)
            process.join(_FAREWELL)  # the memory of a hundred processes takes seconds to be freed
            if process.exitcode is not None:
                process.close()
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def start_process(process: BaseProcess) -> None:
    """Start a process, again if the fork server was killed: Python then restarts the server."""
    for _ in range(_STARTS):
        with contextlib.suppress(EOFError, ConnectionError):
            process.start()
            return
        time.sleep(_MOMENT)
    process.start()


@contextlib.contextmanager
def no_interrupt(context: BaseContext) -> Iterator[None]:
    """Block SIGINT and SIGTERM for processes started meanwhile, or for their fork server."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # to start it later would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        if context.get_start_method() == "forkserver":  # it imports much, and is waited for
            forkserver.ensure_running()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _cleaning_quietly() -> Iterator[None]:
    """Silence the resource tracker removing semaphores of killed workers (ranks have some)."""
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        yield
    finally:
        sys.warnoptions.pop()


@contextlib.contextmanager
def _hide_script() -> Iterator[None]:
    """Hide the user's script from a process started meanwhile: spawning would import the script."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Keep the working folder off the path of a process that starts meanwhile.

    A user's ``signal.py`` or ``array.py`` would be taken for the standard library's.
    """
    if os.environ.get(SAFE_PATH):
        yield
        return
    os.environ[SAFE_PATH] = SAFE_PATH_BY_US
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
