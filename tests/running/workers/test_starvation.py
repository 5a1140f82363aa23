from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.running.workers.starvation import Patience, ProcessState, reading

TICKS = os.sysconf("SC_CLK_TCK")


def thread(
    proc: Path, process: int, number: int, state: str, *, used: int = 0, ended: int = 0
) -> Path:
    """A thread's folder below a pretended /proc; times are whole seconds."""
    folder = proc / str(process) / "task" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    before = "1 1 1 0 -1 4194560 0 0 0 0"
    times = f"{used * TICKS} 0 0 {ended * TICKS}"
    text = f"{number} (a name) R of (its own)) {state} {before} {times} 20 0 1 0\n"
    (folder / "stat").write_text(text, encoding="utf-8")
    return folder


def seen(*, used: float = 0.0, is_runnable: bool = True) -> ProcessState:
    """A reading of one thread."""
    return ProcessState(seconds={("1", "1"): used}, is_runnable=is_runnable)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The moment."""
        return self.now


def ended_after(what: dict[float, ProcessState | None], limit: float = 30.0) -> float:
    """Seconds until patience with a worker is over, that is as told from those seconds on."""
    clock = Clock()

    def read() -> ProcessState | None:
        return what[max(second for second in what if second <= clock.now - 100.0)]

    patience = Patience(limit, read, clock=clock)
    for _ in range(20_000):
        clock.now += patience.pause()
        if patience.is_over():
            return clock.now - 100.0
    raise AssertionError


@pytest.mark.parametrize(
    ("states", "is_runnable"),
    [("S", False), ("SSR", True), ("D", True), ("T", False), ("SZ", False), ("t", False)],
)
def test_one_runnable_thread_is_enough(tmp_path: Path, states: str, *, is_runnable: bool) -> None:
    """R and D wait for the machine; who sleeps, is stopped or has ended does not."""
    for number, state in enumerate(states):
        thread(tmp_path, 7, 7 + number, state)
    found = reading(7, tmp_path)
    assert found is not None
    assert found.is_runnable is is_runnable


def test_the_busiest_thread_counts(tmp_path: Path) -> None:
    """Eight threads that worked for three seconds each have not worked for a limit of twenty."""
    for number in range(8):
        thread(tmp_path, 7, 7 + number, "R", used=40)
    before = reading(7, tmp_path)
    for number in range(8):
        thread(tmp_path, 7, 7 + number, "R", used=43)
    after = reading(7, tmp_path)
    assert before is not None
    assert after is not None
    assert after.used_since(before) == 3.0


def test_children_count_like_threads(tmp_path: Path) -> None:
    """Also those of children, and what has ended and was waited for; a thread that is new too."""
    folder = thread(tmp_path, 7, 7, "S", ended=5)
    before = reading(7, tmp_path)
    thread(tmp_path, 7, 7, "S", ended=11)
    (folder / "children").write_text("8 9 ", encoding="utf-8")
    (thread(tmp_path, 8, 8, "S") / "children").write_text("10 ", encoding="utf-8")
    thread(tmp_path, 10, 10, "R", used=4)  # the ninth has ended meanwhile
    after = reading(7, tmp_path)
    assert before is not None
    assert after is not None
    assert (before.is_runnable, after.is_runnable) == (False, True)
    assert after.used_since(before) == 6.0
    assert {process for process, _ in after.seconds} == {"7", "8", "10"}


def test_nothing_is_read_where_nothing_is_told(tmp_path: Path) -> None:
    """No such system, no such process, or a text that is none: None, and never an exception."""
    assert reading(7, tmp_path / "none") is None
    assert reading(7, tmp_path) is None
    (thread(tmp_path, 7, 7, "R") / "stat").write_text("7 (cut", encoding="utf-8")
    assert reading(7, tmp_path) is None


def test_wall_time_is_the_limit_where_nothing_is_known() -> None:
    """As everywhere but on Linux; one that cannot be read any more is given no time either."""
    assert ended_after({0.0: None}) == pytest.approx(30.0)
    assert ended_after({0.0: seen(), 10.0: None}) == pytest.approx(30.0)


def test_a_busy_loop_ends_at_the_limit() -> None:
    """It had the processor all the time, and gets no further second."""
    told: dict[float, ProcessState | None] = {float(n): seen(used=n * 0.99) for n in range(40)}
    assert ended_after(told) == pytest.approx(30.0)


def test_a_sleeper_ends_after_a_second_of_samples() -> None:
    """Asleep ten times in a row, which is no pause in somebody's work."""
    assert ended_after({0.0: seen(is_runnable=False)}) == pytest.approx(31.0, abs=0.2)


def test_who_starves_is_waited_for() -> None:
    """A quarter of a processor: the limit is reached in four times the time."""
    told: dict[float, ProcessState | None] = {float(n): seen(used=n / 4.0) for n in range(400)}
    assert 4 * 0.9 * 30.0 <= ended_after(told) <= 4 * 30.0


def test_who_starves_may_sleep_for_a_moment() -> None:
    """Nine samples asleep are none; what then sleeps for good is ended."""
    told = {
        0.0: seen(),
        33.0: seen(is_runnable=False),
        33.85: seen(),
        40.0: seen(is_runnable=False),
    }
    assert ended_after(dict(told)) == pytest.approx(41.0, abs=0.2)


def test_patience_has_an_end() -> None:
    """Stuck on a disk that never answers: twenty times the limit."""
    assert ended_after({0.0: seen()}, limit=5.0) == pytest.approx(100.0, abs=0.2)


def test_work_before_the_call_is_not_counted() -> None:
    """A worker that has worked for an hour starts each of its calls anew."""
    told: dict[float, ProcessState | None] = {
        float(n): seen(used=3600 + n / 2.0) for n in range(400)
    }
    assert ended_after(told) > 50.0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc: wall time alone")
def test_real_processes_are_told_apart() -> None:
    """One that waits for a line is asleep, and a busy loop is runnable and uses seconds."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waits,
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) as works,
    ):
        before = reading(works.pid)
        assert before is not None
        while (now := reading(works.pid)) is None or now.used_since(before) < 0.2:
            assert works.poll() is None
        assert now.is_runnable
        while (found := reading(waits.pid)) is None or found.is_runnable:  # while Python starts
            assert waits.poll() is None
        works.kill()
        waits.kill()
