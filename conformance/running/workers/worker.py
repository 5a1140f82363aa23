"""The process that runs candidates: hanging or dying candidates leave the verdict intact.

Module level stays light: a worker must shield itself (signals, output) before torch is imported.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, TextIO

from ...base.files import SCRATCH

if TYPE_CHECKING:
    from ...base.results import ClauseResult
    from .messages import Order, Ready, RunOptions
    from .planning import CandidatePlan

_WORKER: Final[list[int]] = []  # the process that serves
SAFE_PATH: Final = "PYTHONSAFEPATH"
SAFE_PATH_BY_US: Final = "set by conformance"  # any text sets it; the user's own would be kept
ALIVE: Final = (
    "alive"  # the event that a call of a candidate begins: each has a time limit of its own
)
OURS: Final = "ours"  # the event that a call has ended, and the harness works until the next
KEPT: Final = "kept"  # the event that brings entries of the database, to be written after the run
# The exit status of a worker with a broken device, named in its last line.
BROKEN_DEVICE: Final = 86
_ALIVE_EVERY: Final = 0.1


def serve(
    connection: Connection,
    output: Connection,
    zygote: socket.socket | None = None,
    scratch: str | None = None,
    path: list[str] | None = None,
) -> None:
    """Answer the supervisor's commands until it says stop or goes away.

    ``zygote`` is the socket for requesting isolated candidates' processes, ``path`` their module
    search path. ``scratch`` is the folder of temporary folders, removed by the supervisor.
    """
    _WORKER[:] = [os.getpid()]
    _shield(output, scratch)
    try:
        _serve(connection, zygote, path or [])
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the supervisor is gone: there is nobody to report to


def _shield(output: Connection, scratch: str | None) -> None:
    """Leave Ctrl-C, standard output and standard error to the supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdout, sys.stderr = _writer(1), _writer(2)
    # hypothesis keeps its caches there, by default in the user's working folder.
    cache = os.path.join(tempfile.gettempdir(), f"attention-conformance-{_user()}")  # noqa: PTH118
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", cache)
    # Threads of torch that wait for each other would else take a processor each.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if os.environ.get(SAFE_PATH) == SAFE_PATH_BY_US:  # no business of what a candidate starts
        del os.environ[SAFE_PATH]
    os.environ.pop(SCRATCH, None)  # that of a worker in which this run was started
    if scratch is not None:
        os.environ[SCRATCH] = scratch
    threading.Thread(target=_follow_parent, args=(scratch,), daemon=True).start()


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"


def _writer(descriptor: int) -> TextIO:
    """Return a new stream: the old stream may believe its file is seekable."""
    return os.fdopen(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _follow_parent(scratch: str | None) -> None:
    """End this process after the supervisor's end, and remove ``scratch`` in its place."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)


def _serve(connection: Connection, zygote: socket.socket | None, path: list[str]) -> None:
    from ...base.limits import uncollected  # noqa: PLC0415
    from ...errors import UsageError  # noqa: PLC0415

    try:
        with uncollected():
            prepared = ready()
        connection.send(("ready", prepared))
    except UsageError as error:  # an installed distribution brings clauses that cannot be used
        connection.send(("refused", str(error)))
        return
    except ImportError as error:
        connection.send(("broken", f"the harness cannot start: {error}"))
        return
    if zygote is not None:
        from .planning import ISOLATING, Isolating  # noqa: PLC0415 (loads torch)

        ISOLATING[:] = [Isolating(zygote=zygote, path=path)]
    plans: list[CandidatePlan] = []
    current = (0, 0)  # candidate and round
    while True:
        command, payload = connection.recv()
        if command == "load":
            plans, current = _load(connection, payload), (0, 0)
            gc.freeze()  # they are there to the end
        elif command == "run":
            candidate, task, order = payload
            if (candidate, order.round) != current:  # each holds a hundred megabytes
                plans[current[0]].run.forget()
                current = candidate, order.round
            _run(connection, plans[candidate], task, order)
        elif command == "perform":
            candidate, job, argument = payload
            _perform(connection, plans[candidate], job, argument)
        else:
            return


def _send(connection: Connection, tag: str, payload: Any) -> None:
    """Send an event; a copy of the worker forked by a candidate ends here."""
    if os.getpid() not in _WORKER:
        os._exit(1)
    connection.send((tag, payload))


def ready() -> Ready:
    """The specification and the environment."""
    from ...clauses.device import on_a_device  # noqa: PLC0415 (loads torch)
    from ...clauses.ranks import spans_ranks  # noqa: PLC0415
    from ...clauses.registry import (  # noqa: PLC0415 (loads torch)
        all_clauses,
        facts,
        specification_hash,
    )
    from .messages import Ready, environment  # noqa: PLC0415

    clauses = all_clauses()
    return Ready(
        environment=environment(),
        specification=specification_hash(),
        sentences={clause.id: clause.sentence for clause in clauses},
        levels={clause.id: clause.level_text for clause in clauses},
        origins={clause.id: clause.origin for clause in clauses if clause.origin},
        elsewhere=frozenset(
            clause.id for clause in clauses if {on_a_device, spans_ranks} & set(clause.requirements)
        ),
        clauses={clause.id: facts(clause) for clause in clauses},
    )


def _load(connection: Connection, options: RunOptions) -> list[CandidatePlan]:
    from ...calls.integrity import loading  # noqa: PLC0415 (loads torch)
    from ...errors import UsageError  # noqa: PLC0415
    from ...targets.loading import named, one_line  # noqa: PLC0415

    last = ("loading", "")

    def on_step(step: str, name: str) -> None:
        nonlocal last
        last = (step, name)
        _send(connection, step, name)

    try:
        with loading(), _alive(connection):
            plans: list[CandidatePlan] = named(options.loader)(options, on_step)
        loaded = [plan.loaded() for plan in plans]
    except UsageError as error:
        _send(connection, "refused", str(error))
        return []
    except KeyboardInterrupt as error:  # a real Ctrl-C is ignored here: this one is the user's code
        _send(connection, "refused", f"{last[0]} {last[1]} raised {one_line(error)}")
        return []
    except Exception as error:  # noqa: BLE001 (the harness' own mistake, as one sentence)
        _send(connection, "broken", f"{last[0]} {last[1]}: {one_line(error)}")
        return []
    _send(connection, "loaded", loaded)
    return plans


def _run(connection: Connection, plan: CandidatePlan, index: int, order: Order) -> None:
    try:
        result = _result(connection, plan, index, order)
    except Exception as error:  # noqa: BLE001 (what the candidate raises is a result)
        _send(connection, "broken", repr(error))
    else:
        memory = plan.run.memory
        if memory is not None and (entries := memory.taken()):
            _send(connection, KEPT, entries)
        _send(connection, "result", result.as_json())


def _result(connection: Connection, plan: CandidatePlan, index: int, order: Order) -> ClauseResult:
    from .planning import run_clause  # noqa: PLC0415 (loads torch)

    clause = plan.planned[index]
    with _alive(connection) as calls:

        def on_event(tag: str, what: Any) -> None:
            _send(connection, tag, what)
            if tag == "failure":
                calls.tell_ends()

        result = run_clause(plan.run, clause, order, on_event)
    if result.status in ("failed", "error"):
        _leave_a_broken_device(clause.device)
    return result


class _Calls(ExitStack):
    """Tells the supervisor when a call of the candidate begins, at most every few moments.

    While a failure is explained the ends of calls are told, too: the harness may compute longer
    between two calls than the candidate's time limit for a call.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection: Final = connection
        self._began, self._ends_told = 0.0, False

    def tell_begin(self) -> None:
        now = time.monotonic()
        if self._ends_told or now - self._began >= _ALIVE_EVERY:
            self._began = now
            _send(self._connection, ALIVE, None)

    def tell_ends(self) -> None:
        """From now on tell the end of a call, too: the harness works, not the candidate."""
        from ...calls.calling import within_each_call  # noqa: PLC0415 (loads torch)

        self._end()
        if not self._ends_told:
            self._ends_told = True
            self.enter_context(within_each_call(_AtEnd(self._end)))

    def _end(self) -> None:
        _send(self._connection, OURS, None)


class _AtEnd(AbstractContextManager[None]):
    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Final = act

    def __exit__(self, *_: object) -> None:
        self._act()


@contextmanager
def _alive(connection: Connection) -> Iterator[_Calls]:
    from ...calls.calling import before_each_call  # noqa: PLC0415 (loads torch)

    with _Calls(connection) as calls, before_each_call(calls.tell_begin):
        yield calls


def _leave_a_broken_device(device: str) -> None:
    """End the process if a kernel has broken the device: nothing runs on it afterwards."""
    from ...calls.devices import here, why_absent  # noqa: PLC0415 (loads torch)

    reason = why_absent(device).removeprefix(here()).strip()
    if reason:
        sys.stderr.write(f"{device} does not answer any more {reason}\n")
        sys.stderr.flush()
        os._exit(BROKEN_DEVICE)


def _perform(connection: Connection, plan: CandidatePlan, job: str, argument: Any) -> None:
    from ...errors import UsageError  # noqa: PLC0415
    from ...targets.loading import named, one_line  # noqa: PLC0415

    def on_step(step: str, name: str) -> None:
        _send(connection, step, name)

    try:
        with _alive(connection):
            done = named(job)(plan, argument, on_step)
    except UsageError as error:
        _send(connection, "refused", str(error))
    except KeyboardInterrupt as error:  # as in _load
        _send(connection, "refused", f"the candidate raised {one_line(error)}")
    except BaseException as error:  # noqa: BLE001 (the worker stays; the supervisor says what it was)
        _send(connection, "broken", f"{job} raised {one_line(error)}")
    else:
        _send(connection, "performed", done)
