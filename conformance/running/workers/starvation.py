"""Tells a process that hangs from one that a busy machine leaves without a processor.

The limit of a call is wall time, as one waits for it: a worker that sleeps or waits for itself uses
nothing else. Where the limit is reached, the kernel says what its threads do (Linux, ``proc(5)``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
# R waits for a processor or has one, D waits for the disk: for neither can the candidate be blamed.
_RUNNABLE: Final = frozenset("RD")
_STATE, _USER, _ENDED = 0, 11, 13  # places behind the name; system time is behind each of the times
_SLICE: Final = 0.5
_SAMPLE: Final = 0.1
_ASLEEP: Final = 10  # samples in a row: one that starves may wait for a lock of its own at times
_NEARLY: Final = 0.9  # a busy loop has not quite the whole of a processor that is its own
_CEILING: Final = 20.0  # times the limit

Read = Callable[[], "ProcessState | None"]


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What a process and its children do.

    ``seconds`` of processor time are by process and thread, and by process alone for its children
    that have ended. Children that live (the processes in which torch compiles) are seen where the
    kernel lists them, as those of the usual distributions do; elsewhere they count once they ended.
    """

    seconds: Mapping[tuple[str, str], float]
    is_runnable: bool

    def used_since(self, before: ProcessState) -> float:
        """Seconds of the busiest thread: what the same work takes where nobody is in its way.

        The sum over all threads would be large after a moment where there are many of them.
        """
        return max(
            (spent - before.seconds.get(name, 0.0) for name, spent in self.seconds.items()),
            default=0.0,
        )


def reading(pid: int, proc: Path = _PROC) -> ProcessState | None:
    """What a process and its children do now; None where the system does not say."""
    seconds: dict[tuple[str, str], float] = {}
    is_runnable = False
    for process, thread in _threads(str(pid), proc):
        fields = _fields(proc / process / "task" / thread / "stat")
        if fields:
            is_runnable = is_runnable or fields[_STATE] in _RUNNABLE
            seconds[process, thread] = _seconds(fields, _USER)
            seconds[process, ""] = _seconds(fields, _ENDED)
    return ProcessState(seconds=seconds, is_runnable=is_runnable) if seconds else None


def _threads(pid: str, proc: Path) -> Iterator[tuple[str, str]]:
    """Process and thread of each thread of a process, of its children, and of theirs."""
    try:
        threads = sorted(path.name for path in (proc / pid / "task").iterdir())
    except OSError:  # it has ended, or there is no such folder on this system
        return
    for thread in threads:
        yield pid, thread
        for child in _text(proc / pid / "task" / thread / "children").split():
            yield from _threads(child, proc)


def _fields(path: Path) -> list[str]:
    """What is behind the name in parentheses, which may hold spaces; empty if it has ended."""
    fields = _text(path).rpartition(")")[2].split()
    return fields if len(fields) > _ENDED + 1 else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a thread or process that has ended meanwhile
        return ""


def _seconds(fields: list[str], place: int) -> float:
    """User and system time."""
    return (int(fields[place]) + int(fields[place + 1])) / os.sysconf("SC_CLK_TCK")


class Patience:
    """How long one waits for a process to answer: ``limit`` seconds, and longer while it starves.

    It starves while some thread of it or of its children could run, though none has used as much
    processor time as the limit: then the limit is one of processor time, and twenty times the limit
    is the end of all patience. One that sleeps, is stopped or deadlocked has no such thread, and a
    busy loop uses the time. Where ``read`` gives None the limit is wall time alone.
    """

    def __init__(
        self, limit: float, read: Read, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._read, self._clock = limit, read, clock
        self._began = clock()
        self._before: ProcessState | None = None
        self._is_first = True
        self._asleep = 0

    def pause(self) -> float:
        """Seconds to wait for an answer before ``is_over`` is asked again."""
        left = self._began + self._limit - self._clock()
        return min(_SLICE, left) if left > 0.0 else _SAMPLE

    def is_over(self) -> bool:
        """Whether the process hangs; to be asked after each pause, as it counts the samples."""
        waited = self._clock() - self._began
        if self._is_first:  # most answers are here before anybody asks, and are not to pay for it
            self._before, self._is_first = self._read(), False
        if waited < self._limit:
            return False
        now = self._read()
        if now is None or self._before is None or waited >= _CEILING * self._limit:
            return True
        if now.used_since(self._before) >= _NEARLY * self._limit:
            return True
        self._asleep = 0 if now.is_runnable else self._asleep + 1
        return self._asleep >= _ASLEEP
