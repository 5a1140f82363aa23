"""The time to wait for a process: a hanging process is told from a starving one.

The limit of a call is wall time: a process that sleeps or waits for itself uses nothing else. At
the limit, the kernel tells the states of the threads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

# One waits for a processor or has one, one waits for the disk: neither is the candidate's fault.
_RUNNABLE: Final = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
_SLICE: Final = 0.5
_SAMPLE: Final = 0.1
_ASLEEP: Final = 10  # samples in a row: one that starves may wait for a lock of its own at times
_NEARLY: Final = 0.9  # a busy loop has not quite the whole of a processor that is its own
_CEILING: Final = 20.0  # times the limit


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """The activity of a process and its children.

    ``seconds`` of processor time are by process and thread; thread 0 stands for all ended children.
    """

    seconds: Mapping[tuple[int, int], float]
    is_runnable: bool

    def used_since(self, before: ProcessState) -> float:
        """Seconds of the busiest thread: the time of equal work on an idle machine.

        The sum over many threads would be large after a moment.
        """
        used = (spent - before.seconds.get(name, 0.0) for name, spent in self.seconds.items())
        return max(used, default=0.0)


def process_state(pid: int) -> ProcessState | None:
    """The activity of a process and its children now; None if the system does not say.

    Only Linux has a status for each thread, under the thread's own number.
    """
    seconds: dict[tuple[int, int], float] = {}
    is_runnable = False
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each_process in (process, *process.children(recursive=True)) if psutil.LINUX else ():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                for thread in each_process.threads():
                    seconds[each_process.pid, thread.id] = thread.user_time + thread.system_time
                    is_runnable |= _status(thread.id) in _RUNNABLE
                times = each_process.cpu_times()
                seconds[each_process.pid, 0] = times.children_user + times.children_system
    return ProcessState(seconds=seconds, is_runnable=is_runnable) if seconds else None


def starved_seconds(process: int | None = None) -> float:
    """Seconds for which this thread, or a process, has waited for a processor since its start.

    Of a process the first thread counts. 0.0 if the system does not say: Linux alone does, in
    nanoseconds (its documentation of ``schedstat``).
    """
    where = "thread-self" if process is None else str(process)
    with contextlib.suppress(OSError, ValueError, IndexError):
        return float(Path(f"/proc/{where}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def fair_clock() -> float:
    """Seconds on a clock that stands still while this thread waits for a processor."""
    return time.monotonic() - starved_seconds()


def _status(thread: int) -> str:
    try:
        return psutil.Process(thread).status()
    except psutil.Error:  # a thread that has ended meanwhile
        return ""


class Patience:
    """The time to wait for a process's answer: ``limit`` seconds, and longer while it starves.

    A process starves while some thread of the process or its children could run, though no single
    thread has used as much processor time as the limit. Then the limit is one of processor time,
    and the wait ends after twenty times the limit at the latest. A process that sleeps, is stopped
    or deadlocked has no runnable thread, and a busy loop uses the time. If ``state`` gives None the
    limit is wall time.
    """

    def __init__(
        self,
        limit: float,
        state: Callable[[], ProcessState | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._state, self._clock = limit, state, clock
        self._began = clock()
        self._before: ProcessState | None = None
        self._is_first = True
        self._asleep = 0

    def pause(self) -> float:
        """Seconds to wait for an answer before the next call of ``is_over``."""
        left = self._began + self._limit - self._clock()
        return min(_SLICE, left) if left > 0.0 else _SAMPLE

    def is_over(self) -> bool:
        """Whether the process hangs; call it after every pause, as each call counts as a sample."""
        waited = self._clock() - self._began
        if self._is_first:  # most answers come before the first pause ends, and cost nothing
            self._before, self._is_first = self._state(), False
        if waited < self._limit:
            return False
        now = self._state()
        if now is None or self._before is None or waited >= _CEILING * self._limit:
            return True
        if now.used_since(self._before) >= _NEARLY * self._limit:
            return True
        self._asleep = 0 if now.is_runnable else self._asleep + 1
        return self._asleep >= _ASLEEP
