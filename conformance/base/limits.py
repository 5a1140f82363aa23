"""What a run may take, as people write it: time and memory; and what day it is."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final

from ..errors import UsageError

VARIABLE: Final = "CONFORMANCE_TODAY"


def today() -> date:
    """Today's date in UTC, the same on every machine of a gate.

    The environment variable ``CONFORMANCE_TODAY`` sets another: tests use it, and whoever wants to
    know what will be red next month. Raises UsageError when it is no day.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return datetime.now(tz=UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        msg = f"{VARIABLE} is {text!r}: give a day such as 2027-01-31, or unset it"
        raise UsageError(msg) from None


# What begins the reason of a clause that was not run, and of one that was not run to its end.
NOT_RUN: Final = "not run: "
NOT_FINISHED: Final = "not run to its end: "
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PLAIN: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_PARTS: Final = re.compile(
    r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?", re.ASCII
)
_LONGEST: Final = 365 * 24 * 3600.0
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", re.ASCII)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# What a call in progress is left at the end of the time: one of so many parts of the whole, and
# seconds at most.
_GRACE_PARTS: Final = 25
_MOST_GRACE: Final = 2.0


def read_seconds(text: str, option: str = "--max-time") -> float:
    """The seconds of ``90``, ``90s``, ``10m`` or ``1h30m``; raises UsageError."""
    written = text.strip().lower().replace(" ", "")
    seconds = 0.0
    if _PLAIN.fullmatch(written):
        seconds = float(written)
    elif written and (parts := _PARTS.fullmatch(written)):
        seconds = sum(float(parts[unit] or 0.0) * _UNITS[unit] for unit in _UNITS)
    if not 0.0 < seconds <= _LONGEST:
        msg = f"{option} {text!r} is no duration: write seconds (90) or a time such as 10m or 1h30m"
        raise UsageError(msg)
    return seconds


def read_bytes(text: str, option: str = "--max-memory") -> int:
    """The bytes of ``8G``, ``1.5GiB`` or ``500M``, in powers of 1024; raises UsageError."""
    parts = _SIZE.fullmatch(text.strip().lower().replace(" ", ""))
    size = 0 if parts is None else int(float(parts[1]) * 1024 ** _POWERS[parts[2]])
    if not size:
        msg = f"{option} {text!r} is no size of memory: write 8G or 500M"
        raise UsageError(msg)
    return size


def spoken(seconds: float) -> str:
    """A duration in words: ``60 s``, ``10 min``, ``1 h 30 min``."""
    if seconds < 600 or seconds % 60:  # noqa: PLR2004 (people say 90 s, and not 600 s)
        return f"{seconds:g} s"
    hours, minutes = divmod(round(seconds / 60.0), 60)
    parts = [f"{hours} h"] if hours else []
    return " ".join([*parts, *([f"{minutes} min"] if minutes else [])])


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """When a run must have ended.

    At ``limit`` seconds no further example is begun; a call that still runs a little later, at
    ``last``, is stopped with its process.
    """

    limit: float
    started: float = field(default_factory=time.monotonic)

    @property
    def last(self) -> float:
        """The moment at which processes are stopped, on the monotonic clock."""
        return self.started + self.limit + min(self.limit / _GRACE_PARTS, _MOST_GRACE)

    def left(self) -> float:
        """Seconds in which something may still be begun; 0 when there are none."""
        return max(0.0, self.started + self.limit - time.monotonic())

    @property
    def sentence(self) -> str:
        """The reason of a clause that it cut off."""
        return f"the limit of {spoken(self.limit)} was reached"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """What is made meanwhile is never collected, nor looked through for what could be."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
