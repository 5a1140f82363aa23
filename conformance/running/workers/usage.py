"""What a process uses: one that hangs, one that a busy machine starves, one that takes much memory.

And how it is ended, with all that it has started.

The limit of a call is wall time, as one waits for it: a worker that sleeps or waits for itself uses
nothing else. Where the limit is reached, the kernel says what its threads do.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import psutil

# Of the machine's memory, where no other limit is given: the rest is for all other programs.
SHARE: Final = 0.75
# What a container may use, in bytes, or "max" (the kernel's documentation of cgroup v2).
_OF_THE_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")
_PAUSE: Final = 0.2
# Seconds that an exact count is waited for: a few processes take less.
_LONGEST_LOOK: Final = 0.1
# One waits for a processor or has one, one waits for the disk: neither is the candidate's fault.
_RUNNABLE: Final = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
_SLICE: Final = 0.5
_SAMPLE: Final = 0.1
_ASLEEP: Final = 10  # samples in a row: one that starves may wait for a lock of its own at times
_NEARLY: Final = 0.9  # a busy loop has not quite the whole of a processor that is its own
_CEILING: Final = 20.0  # times the limit


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What a process and its children do.

    ``seconds`` of processor time are by process and thread. Under thread 0 stand those of all
    children that have ended.
    """

    seconds: Mapping[tuple[int, int], float]
    is_runnable: bool

    def used_since(self, before: ProcessState) -> float:
        """Seconds of the busiest thread: what the same work takes on an idle machine.

        The sum over many threads would be large after a moment.
        """
        used = (spent - before.seconds.get(name, 0.0) for name, spent in self.seconds.items())
        return max(used, default=0.0)


def process_state(pid: int) -> ProcessState | None:
    """What a process and its children do now; None where the system does not say.

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


def _status(thread: int) -> str:
    try:
        return psutil.Process(thread).status()
    except psutil.Error:  # a thread that has ended meanwhile
        return ""


class Patience:
    """How long to wait for the answer of a process: ``limit`` seconds, and longer while it starves.

    It starves while some thread of it or of its children could run, though no single thread has
    used as much processor time as the limit. Then the limit is one of processor time, and the wait
    ends after twenty times the limit at the latest. A process that sleeps, is stopped or deadlocked
    has no such thread, and a busy loop uses the time. Where ``state`` gives None the limit is wall
    time.
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
        """Whether the process hangs; to be called after each pause, as it counts the samples."""
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


@cache
def usual_limit() -> int:
    """Bytes that a worker may take where nothing else is said."""
    most = psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):
        most = min(most, int(_OF_THE_CONTAINER.read_text(encoding="ascii")))
    return int(most * SHARE)


def used_memory(pid: int, *, exactly: bool = False) -> int:
    """Bytes that a process and its children hold; 0 for one that has ended.

    What they share counts for each, unless ``exactly``, which takes longer (Linux).
    """
    used = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                exact = exactly and psutil.LINUX
                used += each.memory_full_info().pss if exact else each.memory_info().rss
    return used


def _count_exactly(pid: int, counted: queue.SimpleQueue[int]) -> None:
    counted.put(used_memory(pid, exactly=True))


class MemoryLimit:
    """Whether a process takes more than ``most`` bytes; ``used`` is what it took when looked at."""

    def __init__(
        self, pid: int, most: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = usual_limit() if most is None else most
        self.pause = _PAUSE
        self._pid, self._clock = pid, clock
        self._looked = clock()
        self._counted: queue.SimpleQueue[int] | None = None
        self.used = 0
        self.used = self._used()

    def _used(self) -> int:
        """Bytes held now: exactly, where what is shared may make the difference."""
        rough = used_memory(self._pid)
        return self._exactly() if rough > self.most else rough

    def _exactly(self) -> int:
        """Bytes held now, or those known before while they are still being counted.

        Of hundreds of processes that takes longer than a run may have left.
        """
        if self._counted is None:
            self._counted = queue.SimpleQueue()
            arguments = (self._pid, self._counted)
            threading.Thread(target=_count_exactly, args=arguments, daemon=True).start()
        with contextlib.suppress(queue.Empty):
            self.used = self._counted.get(timeout=_LONGEST_LOOK)
            self._counted = None
        return self.used

    def is_exceeded(self) -> bool:
        """Whether it holds too much now."""
        now = self._clock()
        if now - self._looked < _PAUSE:
            return False
        self._looked, self.used = now, self._used()
        return self.used > self.most


def kill_group(process: BaseProcess) -> None:
    """End a worker at once, and what it started where it has a group of its own."""
    pid = process.pid
    if pid is not None and hasattr(os, "killpg"):
        group = pid  # of a worker that has ended by itself: its group outlives it
        with contextlib.suppress(ProcessLookupError):
            group = os.getpgid(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group == pid:  # once the worker has its own group, never this process's
                os.killpg(pid, signal.SIGKILL)
    process.kill()
