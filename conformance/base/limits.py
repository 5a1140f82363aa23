"""The limits of a run as people write them (time, memory, machines), and today's date."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from ..errors import UsageError

VARIABLE: Final = "CONFORMANCE_TODAY"


def today() -> date:
    """Today's date in UTC, equal on all machines of a gate.

    The environment variable ``CONFORMANCE_TODAY`` sets another date, for tests and for a look at
    next month's failures. Raises UsageError for a value that is no date.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return datetime.now(tz=UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        msg = f"{VARIABLE} is {text!r}: give a day such as 2027-01-31, or unset it"
        raise UsageError(msg) from None


# The beginnings of the reasons of clauses that were not run, or not run to their end.
NOT_RUN: Final = "not run: "
NOT_FINISHED: Final = "not run to its end: "
# Of calls that are slower than so many a second, a thousand take a minute or more.
FAST_CALLS_A_SECOND: Final = 20
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
# What the searches for names of mistakes may take of a limit.
_SHARE_OF_SEARCH: Final = 0.2
# Times the limit for which workers may wait for a processor on a busy machine.
_MOST_STARVED: Final = 4.0


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
    size = 0.0 if parts is None else float(parts[1]) * 1024.0 ** _POWERS[parts[2]]
    if not 1.0 <= size < math.inf:
        msg = f"{option} {text!r:.80} is no size of memory: write 8G or 500M"
        raise UsageError(msg)
    return int(size)


def left_over(not_run: int, not_finished: int) -> str:
    """``7 clauses were not run, 1 not to the end``: the rest that a limit left, in words."""
    parts = [(not_run, "not run"), (not_finished, "not to the end" if not_run else "cut short")]
    counts = [(number, words) for number, words in parts if number] or parts[:1]
    (first, words), *more = counts
    noun = "clause was" if first == 1 else "clauses were"
    return ", ".join([f"{first:,} {noun} {words}", *(f"{n:,} {also}" for n, also in more)])


def spoken(seconds: float) -> str:
    """A duration in words: ``60 s``, ``10 min``, ``1 h 30 min``."""
    if seconds < 600 or seconds % 60:  # noqa: PLR2004 (people say 90 s, and not 600 s)
        return f"{seconds:g} s"
    hours, minutes = divmod(round(seconds / 60.0), 60)
    parts = [f"{hours} h"] if hours else []
    return " ".join([*parts, *([f"{minutes} min"] if minutes else [])])


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The moment at which a run must have ended.

    At ``limit`` seconds no further example is begun; a call that still runs a little later, at
    ``last``, is stopped with its process. Seconds for which workers waited for a processor do not
    count, up to four times the limit: ``starved`` holds them by worker. A candidate's part of a
    run's limit has ``before``, the seconds waited when the part began, and the ``whole`` limit.
    """

    limit: float
    started: float = field(default_factory=time.monotonic)
    starved: dict[int, float] = field(default_factory=dict)
    before: float = 0.0
    whole: float | None = None

    @property
    def _end(self) -> float:
        return (
            self.started
            + self.limit
            + min(self._waited() - self.before, _MOST_STARVED * self.limit)
        )

    def _waited(self) -> float:
        """The seconds that a worker has waited for a processor, in the mean."""
        return sum(self.starved.values()) / max(1, len(self.starved))

    @property
    def last(self) -> float:
        """The moment at which processes are stopped, on the monotonic clock."""
        return self._end + min(self.limit / _GRACE_PARTS, _MOST_GRACE)

    def left(self) -> float:
        """Seconds left for beginning further work; 0 after the limit."""
        return max(0.0, self._end - time.monotonic())

    @property
    def search(self) -> float:
        """Seconds of the limit that the searches for names may take."""
        return _SHARE_OF_SEARCH * self.limit

    def part(self, share: float) -> Deadline:
        """The end of a part of what is left."""
        waited, whole = self._waited(), self.whole or self.limit
        seconds = share * self.left()
        return Deadline(limit=seconds, starved=self.starved, before=waited, whole=whole)

    @property
    def sentence(self) -> str:
        """The reason of a clause that the limit cut off."""
        return f"the limit of {spoken(self.whole or self.limit)} was reached"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Never collect or search the objects made meanwhile."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# Runs after which all is looked through for what could be collected: a diagnosis leaves megabytes.
RUNS_UNSEARCHED: Final = 8
_RUNS_ENDED: Final = itertools.count(1)


@contextlib.contextmanager
def unsearched() -> Iterator[None]:
    """Exclude the objects made before from the searches of the garbage collector meanwhile.

    In a process that has imported torch a search takes a fifth of a second. Cycles of earlier runs
    are passed over as well: every ``RUNS_UNSEARCHED`` runs all objects are searched at the end.
    """
    ours = gc.get_freeze_count() == 0  # otherwise a caller has frozen the objects
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
            if next(_RUNS_ENDED) % RUNS_UNSEARCHED == 0:
                gc.collect()


MOST_WORKERS: Final = 256
PER_WORKER: Final = "--per-worker"
_ACCELERATOR: Final = "accelerator_type"
# The options by which a task of Ray asks for something, and Ray's names of what machines have.
_COUNTED: Final = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


@dataclass(frozen=True, kw_only=True)
class Share:
    """A worker's part of a machine: amounts by Ray's names, and the kind of its GPU."""

    amounts: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    accelerator: str = ""

    def add_gpu(self) -> Share:
        """The share of a worker whose candidate asks for a GPU."""
        return Share(amounts={"GPU": 1.0, **self.amounts}, accelerator=self.accelerator)

    def options(self) -> dict[str, Any]:
        """The share as options of a task."""
        named = {option: self.amounts.get(name, 0.0) for option, name in _COUNTED.items()}
        own = {
            name: amount for name, amount in self.amounts.items() if name not in _COUNTED.values()
        }
        kind = {_ACCELERATOR: self.accelerator} if self.accelerator else {}
        return {**named, "memory": named["memory"] or None, "resources": own, **kind}

    def places(self, has: Mapping[str, float]) -> int:
        """How many workers a machine has room for."""
        if self.accelerator and f"{_ACCELERATOR}:{self.accelerator}" not in has:
            return 0
        room = [has.get(name, 0.0) / amount for name, amount in self.amounts.items() if amount]
        return min([MOST_WORKERS, *map(int, room)])

    def __str__(self) -> str:
        kind = [f"{_ACCELERATOR}={self.accelerator}"] if self.accelerator else []
        names = {name: option for option, name in _COUNTED.items()}
        amounts = [f"{names.get(name, name)}={amount:g}" for name, amount in self.amounts.items()]
        return ", ".join([*amounts, *kind])


def read_share(texts: Sequence[str]) -> Share:
    """The share that ``NAME=NUMBER`` and ``accelerator_type=NAME`` describe; raises UsageError."""
    amounts, accelerator = {"CPU": 1.0}, ""
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign and value):
            msg = f"{PER_WORKER} {text!r} is no amount: write NAME=NUMBER, such as num_gpus=1"
            raise UsageError(msg)
        if name == _ACCELERATOR:
            accelerator = value
        else:
            amounts[_COUNTED.get(name, name)] = _read_amount(name, value)
    return Share(amounts=amounts, accelerator=accelerator)


def _read_amount(name: str, value: str) -> float:
    if name == "memory":
        return float(read_bytes(value, f"{PER_WORKER} {name}="))
    try:
        amount = float(value)
    except ValueError:
        amount = math.nan
    least = "above 0" if name == "num_cpus" else "from 0 on"
    too_small = amount <= 0 if name == "num_cpus" else amount < 0
    if not math.isfinite(amount) or too_small or (amount > 1 and not amount.is_integer()):
        msg = (
            f"{PER_WORKER} {name}={value} is no amount of Ray: give a number {least}, a whole "
            "number above 1"
        )
        raise UsageError(msg)
    return amount


def is_slow(seconds: float) -> bool:
    """Whether a call takes so long that only few calls can be made."""
    return seconds * FAST_CALLS_A_SECOND >= 1.0
