"""The memory of a process, and ending a process with its descendants."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import psutil

# The share of the machine's memory without a given limit: the rest is for other programs.
SHARE: Final = 0.75
# A container's limit in bytes, or "max" (the kernel's documentation of cgroup v2).
_OF_THE_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")
_PAUSE: Final = 0.2
# Seconds of waiting for an exact count: a few processes take less.
_LONGEST_LOOK: Final = 0.1


@cache
def usual_limit() -> int:
    """Return the default memory limit of a worker in bytes."""
    most = psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):
        most = min(most, int(_OF_THE_CONTAINER.read_text(encoding="ascii")))
    return int(most * SHARE)


def used_memory(pid: int, *, exactly: bool = False) -> int:
    """Return the bytes held by a process and its children; 0 after its end.

    Shared memory counts for every process, unless ``exactly`` (Linux; slower).
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
    """Check whether a process exceeds ``most`` bytes; ``used`` is its memory at the last check."""

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
        """Return the bytes held now, exactly if shared memory may exceed the limit."""
        rough = used_memory(self._pid)
        return self._exactly() if rough > self.most else rough

    def _exactly(self) -> int:
        """Return the exact bytes held, or the last known number while counting.

        Counting hundreds of processes may take longer than the run has left.
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
        """Tell whether the process exceeds its memory limit now."""
        now = self._clock()
        if now - self._looked < _PAUSE:
            return False
        self._looked, self.used = now, self._used()
        return self.used > self.most


def kill_group(process: BaseProcess) -> None:
    """Kill a worker at once, with its descendants if it has its own process group."""
    pid = process.pid
    if pid is not None and hasattr(os, "killpg"):
        group = pid  # of a worker that has ended by itself: its group outlives it
        with contextlib.suppress(ProcessLookupError):
            group = os.getpgid(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group == pid:  # once the worker has its own group, never this process's
                os.killpg(pid, signal.SIGKILL)
    process.kill()
