"""The result of a clause: plain data that any view can show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, Self, get_args

Status = Literal[
    "passed",
    "failed",
    "error",
    "not-applicable",
    "untestable",
    "expected-failure",
    "unexpected-pass",
]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_OPTIONAL: Final = ("blame", "planned", "trail", "coverage", "explained_by")
# Tenths of a millisecond: nobody measures a clause more finely.
_DECIMALS: Final = 4
KINDS: Final = (
    "value",
    "shape",
    "dtype",
    "type",
    "finite",
    "raised",
    "not-raised",
    "not-called",
    "opcheck",
    "mutated",
    "memory",
    "tampered",
    "crashed",
    "hung",
    "file",
)
# The kinds of failure that another way to compute attention may explain.
WRONG_ANSWERS: Final = ("value", "shape", "finite")
# How a record says numbers that JSON has not.
NOT_FINITE: Final = ("nan", "inf", "-inf")
# The sizes whose product says which of two problems is the smaller.
_SIZES: Final = ("batch", "num_heads", "query_length", "key_length", "head_size", "value_head_size")
# An answer that is no number says less of what is wrong than one of so many times the elements.
_ELEMENTS_OF_NO_NUMBER: Final = 8
# Where a violation of a whole model says which attention is to blame, by its index.
SITE: Final = "site"
# The fact that names the masks that hide by 1: with them the answer is right.
INVERTED: Final = "inverted"

# How the reason of a clause ends that is not applicable for want of gradients that nobody excluded.
EXCLUDE_GRADIENTS: Final = 'say without=["gradients"] where it is for inference alone'

# How the reason of a clause begins that a fault of the machine's torch would have failed.
BLAMED_ON_PLATFORM: Final = "no fault of the candidate's: "

# What the reason of state.threads holds where nothing could be asked on several.
ONE_THREAD: Final = "one thread"
# The facts about an answer that differs on several threads: the number of threads, and whether
# equal calls get different answers on them.
THREADS: Final = "threads"
RACE: Final = "race"


def absent_device(name: str) -> str:
    """How the reason of a clause begins that is not applicable for want of a device."""
    return f"the device {name} is not here"


@dataclass(frozen=True, eq=False)  # subclasses define equality
class Replaceable:
    """A frozen dataclass that gives copies of itself."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        own, kind = vars(self), type(self)
        names = _fields(kind)  # type: ignore[arg-type]  # every class can be hashed
        values = {name: own[name] for name in names} | changes
        if len(values) > len(names) or hasattr(kind, "__post_init__"):
            return kind(**values)  # which says what is no field, or looks at the values
        copy = object.__new__(kind)
        vars(copy).update(values)  # thousands in a run: the constructor sets each by itself
        return copy


@lru_cache(maxsize=256)
def _fields(kind: type[Replaceable]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """How an answer broke a clause.

    kind
        One of ``KINDS``.
    message
        One sentence for a person.
    expected, got, where
        Plain data: numbers, texts, lists; ``where`` is the index of the worst element.
    measured
        The facts of a numerical comparison: margin, error, bound, the worst element by its axes
        (batch, head, query, channel), the part of each stage in the bound, the fitted scale error;
        of a whole model the index of the attention to blame (``site``), or the masks that work the
        wrong way round (``inverted``).
    compared
        The tensors that were compared, where they are small: ``expected``, ``got``, ``bound`` and
        ``judged`` as tables; ``relation`` says how expected and got are made of the candidate's
        answers (see :mod:`conformance.oracle.comparison`).
    traceback
        Of an exception the calls that led to it, outermost first, a line each.
    """

    kind: str
    message: str
    expected: Any = None
    got: Any = None
    where: list[int] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    compared: dict[str, Any] = field(default_factory=dict)
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class ClauseResult(Replaceable):
    """The outcome of one clause for one candidate in one dtype on one device.

    ``margin`` is the largest error over its bound of all calls (1 is at the bound), None without a
    numerical comparison. ``seconds`` is wall time. ``blame`` names the step of a failing graph's
    export, and the stage inside the graph, at which the answer first departs (see
    :mod:`conformance.diagnosis.exports.blame`). ``planned`` is the number of planned examples if
    the time limit came first, ``trail`` the result of every example of a shard (see
    :mod:`conformance.running.tally`), ``coverage`` the number of combinations of its parameters
    that a clause about combinations has tried (see :mod:`conformance.problems.combinations`).
    ``explained_by`` is the mistake that makes the clause fail, too, if ``diagnosis`` has no name:
    the name of another failure, acted out on this failure's problem.
    """

    id: str
    family: str
    level: str
    status: Status
    reason: str = ""
    examples: int = 0
    binding: int = 0
    seconds: float = 0.0
    dtype: str = "float32"
    device: str = "cpu"
    margin: float | None = None
    violation: Violation | None = None
    counterexample: dict[str, Any] | None = None
    diagnosis: list[dict[str, Any]] = field(default_factory=list)
    blame: dict[str, Any] | None = None
    planned: int | None = None
    trail: dict[str, Any] | None = None
    coverage: dict[str, Any] | None = None
    explained_by: str | None = None

    @property
    def lacks_gradients(self) -> bool:
        """Whether the clause is not applicable for want of gradients that nobody excluded."""
        return self.status == "not-applicable" and self.reason.endswith(EXCLUDE_GRADIENTS)

    def as_json(self) -> dict[str, Any]:
        """The entry of the report; numbers that are not finite become texts.

        ``blame`` and the fields about parts of a run are left out if None. The compared tensors are
        left out of the violation if the counterexample has them.
        """
        data: dict[str, Any] = plain(dataclasses.asdict(self))
        data["seconds"] = round(self.seconds, _DECIMALS)
        if self.violation is not None and self.violation.compared.keys() <= set(
            self.counterexample or ()
        ):
            del data["violation"]["compared"]
        for name in _OPTIONAL:
            if data[name] is None:
                del data[name]
        if data["violation"] is not None and not data["violation"]["traceback"]:
            del data["violation"]["traceback"]
        return data


def result_from_json(data: dict[str, Any]) -> ClauseResult:
    """The inverse of :meth:`ClauseResult.as_json`, as far as a view needs it."""
    violation = data.get("violation")
    margin = data.get("margin")
    return ClauseResult(
        **{
            **data,
            "margin": None if margin is None else float(margin),
            "violation": None if violation is None else Violation(**violation),
        }
    )


def plain(value: Any) -> Any:
    """Data that JSON can hold: NaN and infinities as texts, tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def elements_shown(sizes: Mapping[str, Any], *, finite: bool) -> int:
    """The number of elements to read in a failure of some sizes; the smallest failure is shown."""
    elements = math.prod(int(sizes.get(name, 1)) for name in _SIZES)
    return elements if finite else _ELEMENTS_OF_NO_NUMBER * elements
