"""Memory that is too much is noticed; hanging is told from a busy machine."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from workspaces import KERNEL, write

import conformance
from conformance.__main__ import run
from conformance.running.workers import usage
from conformance.running.workers.usage import (
    MemoryLimit,
    Patience,
    ProcessState,
    process_state,
    usual_limit,
)

Capture = pytest.CaptureFixture[str]
LINUX = pytest.mark.skipif(not psutil.LINUX, reason="wall time is the limit elsewhere")
TAKES = KERNEL.replace(
    "    return attend(query, key, value)",
    """
    if query.shape[2] > 2:
        import time
        kept = bytearray(3 * 1024**3)
        kept[::4096] = bytes(len(kept[::4096]))
        time.sleep(60.0)
    return attend(query, key, value)""",
)


@pytest.mark.usefixtures("warm_workers")
def test_a_candidate_that_takes_too_much_is_stopped(folder: Path, capsys: Capture) -> None:
    """It crashes by saying how much it took; the next clause gets a worker of its own."""
    write(folder, {"attn.py": TAKES})
    words = ["--profile", "quick", "--only", "shape.output", "--max-memory", "2G"]
    assert run(["check", "attn.py", *words]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "took more than 2 GiB of memory and was stopped" in said


@pytest.mark.parametrize("text", ["much", "0", "-2G", "8X", ""])
def test_a_size_that_is_none_is_refused(text: str, capsys: Capture) -> None:
    """In a sentence, as any bad input; the judge in Python refuses the same."""
    assert run(["check", "attn.py", "--max-memory", text]) == 2
    assert "is no size of memory: write 8G or 500M" in capsys.readouterr().err
    with pytest.raises(conformance.UsageError, match="is no size of memory"):
        conformance.Judge(max_memory=text)


@pytest.mark.usefixtures("warm_workers")
def test_a_limit_below_what_a_worker_takes_is_refused(folder: Path, capsys: Capture) -> None:
    """The sentence says how much that is; nothing fails for it."""
    write(folder, {"attn.py": KERNEL})
    assert run(["check", "attn.py", "--max-memory", "1K"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert re.search(r"a worker takes [\d.]+ MiB before .*, more than 1 KiB: allow it", said.err)


def test_shared_memory_alone_is_not_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """What many processes share counts once: the exact sum decides."""
    rough, exact, clock = 900, 300, iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(
        usage, "used_memory", lambda _pid, exactly=False: exact if exactly else rough
    )
    limit = MemoryLimit(1, 500, clock=lambda: next(clock))
    assert not limit.is_exceeded()
    exact = 600
    assert limit.is_exceeded()


def test_a_count_that_takes_long_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact sum of many processes is waited for no longer than a moment, and counts later."""
    ready, moments = threading.Event(), itertools.count()

    def used(_pid: int, *, exactly: bool = False) -> int:
        return 900 if not exactly or ready.wait(20.0) else 0

    monkeypatch.setattr(usage, "used_memory", used)
    began = time.monotonic()
    limit = MemoryLimit(1, 500, clock=lambda: float(next(moments)))
    assert not limit.is_exceeded()
    assert time.monotonic() - began < 15.0
    ready.set()
    while not limit.is_exceeded():
        assert time.monotonic() - began < 15.0


def test_the_usual_limit_leaves_some_of_the_machine() -> None:
    """Three quarters of what there is, or of what the container may have."""
    assert 0 < usual_limit() <= 0.75 * psutil.virtual_memory().total


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
