from __future__ import annotations

import gc
import time
import weakref

import pytest

from conformance.base.limits import (
    RUNS_UNSEARCHED,
    Deadline,
    left_over,
    read_bytes,
    read_seconds,
    spoken,
    unsearched,
)
from conformance.errors import UsageError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("60", 60.0),
        ("0.5", 0.5),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        (" 1H 30M 5s ", 5405.0),
    ],
)
def test_durations_as_people_write_them(written: str, seconds: float) -> None:
    """Seconds alone, or hours, minutes and seconds in this order."""
    assert read_seconds(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["", "0", "0s", "-5", "ten", "5d", "30m1h", "1e3", "nan", "inf", "1h30", "\u0661", "9" * 400],
)
def test_other_durations_are_refused(written: str) -> None:
    """What is no duration, or none that a run can last, is said with how to write one."""
    with pytest.raises(UsageError, match="is no duration: write seconds"):
        read_seconds(written)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (60.0, "60 s"),
        (90.0, "90 s"),
        (600.0, "10 min"),
        (5400.0, "1 h 30 min"),
        (7200.0, "2 h"),
        (601.5, "601.5 s"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    """Short ones in seconds, long ones in hours and minutes."""
    assert spoken(seconds) == words


def test_the_last_moment_is_well_within_a_tenth() -> None:
    """Processes are stopped soon enough for the report to be written within 10 % of the limit."""
    for limit in (10.0, 60.0, 3600.0):
        deadline = Deadline(limit=limit, started=0.0)
        assert limit < deadline.last <= 1.04 * limit
        assert deadline.last <= limit + 2.0


def test_nothing_is_left_of_a_limit_that_has_passed() -> None:
    """The rest of the time is never negative."""
    assert Deadline(limit=5.0, started=time.monotonic() - 6.0).left() == 0.0
    assert 4.0 < Deadline(limit=5.0).left() <= 5.0


def test_what_was_there_is_not_looked_through_meanwhile() -> None:
    """Objects are set aside for the collector, and given back; not those that others set aside."""
    gc.unfreeze()
    with unsearched():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        with unsearched():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("not_run", "not_finished", "words"),
    [
        (7, 1, "7 clauses were not run, 1 not to the end"),
        (1, 0, "1 clause was not run"),
        (0, 1, "1 clause was cut short"),
        (0, 2, "2 clauses were cut short"),
    ],
)
def test_what_a_limit_has_left_over(not_run: int, not_finished: int, words: str) -> None:
    """Nothing is said of what is nothing, and one clause is no clauses."""
    assert left_over(not_run, not_finished) == words


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "G", "0", "-1", "8X", ""])
def test_what_is_no_size_of_memory(text: str) -> None:
    """A size without end is none, either."""
    with pytest.raises(UsageError, match="is no size of memory"):
        read_bytes(text)
    assert read_bytes("1.5K") == 1536


class InCycle:
    """What refers to itself: nothing but a search frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_runs_leave_in_cycles_is_freed_after_some() -> None:
    """Each run passes over what was there before, and would keep what all before it have left."""
    left = []
    for _ in range(3 * RUNS_UNSEARCHED):
        with unsearched():
            left.append(weakref.ref(InCycle()))
    assert sum(one() is not None for one in left) < RUNS_UNSEARCHED


def test_time_on_a_busy_machine_does_not_count() -> None:
    """A deadline moves by what workers waited for a processor, up to four times the limit."""
    deadline = Deadline(limit=10.0, started=time.monotonic() - 10.0)
    assert deadline.left() == 0.0
    deadline.starved[1] = 5.0
    assert deadline.left() == pytest.approx(5.0, abs=0.5)
    part = deadline.part(0.5)
    assert (part.limit, part.sentence) == (pytest.approx(2.5, abs=0.3), deadline.sentence)
    deadline.starved[1] = 1000.0
    assert deadline.left() == pytest.approx(40.0, abs=0.5)
    assert deadline.search == 2.0
