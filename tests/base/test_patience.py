"""Hanging is told from a busy machine."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from conformance.base.patience import Patience, ProcessState, process_state

LINUX = pytest.mark.skipif(not psutil.LINUX, reason="wall time is the limit elsewhere")


def reading(*, used: float = 0.0, is_runnable: bool = True) -> ProcessState:
    """A reading of one thread."""
    return ProcessState(seconds={(1, 1): used}, is_runnable=is_runnable)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The moment."""
        return self.now


def ended_after(what: dict[float, ProcessState | None], limit: float = 30.0) -> float:
    """Seconds until patience with a worker in these states, by the second, is over."""
    clock = Clock()

    def read() -> ProcessState | None:
        return what[max(second for second in what if second <= clock.now - 100.0)]

    patience = Patience(limit, read, clock=clock)
    for _ in range(20_000):
        clock.now += patience.pause()
        if patience.is_over():
            return clock.now - 100.0
    raise AssertionError


def test_the_busiest_thread_counts() -> None:
    """Eight threads that worked for three seconds each have not worked for a limit of twenty."""
    before, after = (
        ProcessState(seconds={(7, n): used for n in range(8)}, is_runnable=True)
        for used in (40.0, 43.0)
    )
    assert after.used_since(before) == 3.0


def test_an_absent_process_has_no_state() -> None:
    """A process that has ended gives None, and never an exception."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert process_state(ended.pid) is None


THREADED = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
threading.Thread(target=input, daemon=True).start()
child.wait()
"""


@LINUX
def test_children_and_threads_count() -> None:
    """A process whose threads wait is runnable while its child works."""
    with subprocess.Popen([sys.executable, "-c", THREADED], stdin=subprocess.PIPE) as waits:
        while (now := process_state(waits.pid)) is None or len({p for p, _ in now.seconds}) < 2:
            assert waits.poll() is None
        before = now
        while (now := process_state(waits.pid)) is None or now.used_since(before) < 0.2:
            assert waits.poll() is None
        assert now.is_runnable
        threads = {thread for process, thread in now.seconds if process == waits.pid}
        assert len(threads - {0}) == 2
        for child in psutil.Process(waits.pid).children():
            child.kill()


def test_wall_time_is_the_limit_where_nothing_is_known() -> None:
    """As everywhere but on Linux; one that cannot be read any more has no more time either."""
    assert ended_after({0.0: None}) == pytest.approx(30.0)
    assert ended_after({0.0: reading(), 10.0: None}) == pytest.approx(30.0)


def test_a_busy_loop_ends_at_the_limit() -> None:
    """It had the processor all the time, and gets no further second."""
    readings: dict[float, ProcessState | None] = {
        float(n): reading(used=n * 0.99) for n in range(40)
    }
    assert ended_after(readings) == pytest.approx(30.0)


def test_a_sleeper_ends_after_a_second_of_samples() -> None:
    """Asleep ten times in a row, which is no pause in somebody's work."""
    assert ended_after({0.0: reading(is_runnable=False)}) == pytest.approx(31.0, abs=0.2)


def test_who_starves_is_waited_for() -> None:
    """A quarter of a processor: the limit is reached in four times the time."""
    readings: dict[float, ProcessState | None] = {
        float(n): reading(used=n / 4.0) for n in range(400)
    }
    assert 4 * 0.9 * 30.0 <= ended_after(readings) <= 4 * 30.0


def test_who_starves_may_sleep_for_a_moment() -> None:
    """Nine samples asleep are none; what then sleeps for good is ended."""
    readings = {
        0.0: reading(),
        33.0: reading(is_runnable=False),
        33.85: reading(),
        40.0: reading(is_runnable=False),
    }
    assert ended_after(dict(readings)) == pytest.approx(41.0, abs=0.2)


def test_patience_has_an_end() -> None:
    """Stuck on a disk that never answers: twenty times the limit."""
    assert ended_after({0.0: reading()}, limit=5.0) == pytest.approx(100.0, abs=0.2)


def test_work_before_the_call_is_not_counted() -> None:
    """A worker that has worked for an hour starts each of its calls with the whole limit."""
    readings: dict[float, ProcessState | None] = {
        float(n): reading(used=3600 + n / 2.0) for n in range(400)
    }
    assert ended_after(readings) > 50.0


@LINUX
def test_real_processes_are_distinguished() -> None:
    """One that waits for a line is asleep, and a busy loop is runnable and uses seconds."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waits,
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) as works,
    ):
        before = process_state(works.pid)
        assert before is not None
        while (now := process_state(works.pid)) is None or now.used_since(before) < 0.2:
            assert works.poll() is None
        assert now.is_runnable
        while (state := process_state(waits.pid)) is None or state.is_runnable:
            assert waits.poll() is None
        works.kill()
        waits.kill()
