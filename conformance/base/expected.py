"""Expected failures: a clause, a reason, and which failure of it is expected until when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from ..errors import DeclarationError, did_you_mean
from .profile import DTYPES
from .results import KINDS

UNEXPECTED_UNLESS_NAMED: Final = ("raised", "crashed", "hung")
_TEXTS: Final = ("clause", "reason", "candidate", "dtype", "device")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an expectation is written, so that a sentence can say what to change.

    ``file`` is a path, or says in words where else; ``line`` is that of the whole entry and
    ``keys`` those of its keys, as far as they are known.
    """

    file: str
    line: int | None = None
    keys: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """``line 7 of known.toml``."""
        return self.of("")

    def of(self, key: str) -> str:
        """Where a key is written, else the entry."""
        line = self.keys.get(key, self.line)
        return self.file if line is None else f"line {line} of {self.file}"


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A known failure. It goes red when it passes, or when it fails in another way.

    clause
        The slug of the clause, or a glob such as ``"mask.*"``. An exact slug must fail; a glob is
        stale when nothing it covers fails.
    reason
        Why this is known and accepted: one sentence.
    kind
        The violation's kind, one of ``results.KINDS`` (``value``, ``shape``, ``raised`` …). Without
        it any kind is covered except an exception, a crash or a hang: those must be named.
    diagnosis
        The name of the mistake that the failure is diagnosed as; another one is another failure.
    candidate, dtype, device
        Globs that restrict the expectation to some candidates, dtypes or devices.
    expires
        The last day on which the failure is accepted: a date, or a text such as "2027-01-31".
    place
        Where it is written; no part of what is expected.
    """

    clause: str
    reason: str
    kind: str | None = None
    candidate: str = "*"
    dtype: str = "*"
    diagnosis: str | None = None
    device: str = "*"
    expires: date | str | None = None
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                msg = f"an expected failure's {name} is {value!r}: give a text that is not empty"
                raise DeclarationError(msg)
        self._check_words()
        if self.diagnosis is not None and not _is_name(self.diagnosis):
            msg = (
                f"an expected failure's diagnosis is {self.diagnosis!r}: give the name of a "
                "mistake, such as 'mask-inverted'"
            )
            raise DeclarationError(msg)
        object.__setattr__(self, "expires", _date(self.expires))

    def _check_words(self) -> None:
        """Require a kind that violations have and a dtype that candidates are judged in."""
        if self.kind is not None and self.kind not in KINDS:
            hint = did_you_mean(str(self.kind), KINDS)
            msg = f"an expected failure's kind is {self.kind!r}, which is unknown{hint}"
            raise DeclarationError(msg)
        if not any(fnmatchcase(name, self.dtype) for name in DTYPES):
            hint = did_you_mean(self.dtype, DTYPES)
            msg = f"an expected failure's dtype is {self.dtype!r}, which is unknown{hint}"
            raise DeclarationError(msg)

    def concerns(self, candidate: str, clause: str, dtype: str, device: str = "cpu") -> bool:
        """Whether this expectation speaks of a clause of a candidate in a dtype on a device."""
        return (
            fnmatchcase(candidate, self.candidate)
            and fnmatchcase(clause, self.clause)
            and fnmatchcase(dtype, self.dtype)
            and fnmatchcase(device, self.device)
        )

    def covers(self, kind: str, diagnosis: Collection[str] = ()) -> bool:
        """Whether a failure of this kind, diagnosed as these mistakes, is the expected one."""
        if self.diagnosis is not None and self.diagnosis not in diagnosis:
            return False
        if self.kind is None:
            return kind not in UNEXPECTED_UNLESS_NAMED
        return kind == self.kind

    def expired(self, today: date) -> bool:
        """Whether the last day on which it was accepted is over."""
        day = _date(self.expires)
        return day is not None and today > day

    def as_json(self) -> dict[str, Any]:
        """Its fields as plain data, with ``file`` and ``line`` where they are known."""
        data = asdict(self)
        del data["place"]
        data["expires"] = None if self.expires is None else str(self.expires)
        if self.place is not None:
            data.update(file=self.place.file, line=self.place.line)
        return data

    @property
    def exact(self) -> bool:
        """Whether the clause is one slug and not a glob."""
        return not any(sign in self.clause for sign in "*?[")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _date(day: object) -> date | None:
    """The day that a date or a text names; raises DeclarationError for anything else."""
    if day is None or (isinstance(day, date) and not isinstance(day, datetime)):
        return day
    try:
        if isinstance(day, str):
            return date.fromisoformat(day.strip())
    except ValueError:
        pass
    shown = day.isoformat() if isinstance(day, datetime) else repr(day)
    msg = f"an expected failure's expires is {shown}: give a day such as 2027-01-31"
    raise DeclarationError(msg)


GivenExpectations = Mapping[str, str | ExpectedFailure] | Iterable[ExpectedFailure] | None


def read_expected(expectations: GivenExpectations) -> tuple[ExpectedFailure, ...]:
    """Read a declaration's ``expected_failures=``: a dict of slug to reason, or a list."""
    if expectations is None:
        return ()
    if isinstance(expectations, Mapping):
        return tuple(
            reason
            if isinstance(reason, ExpectedFailure)
            else ExpectedFailure(clause=clause, reason=reason)
            for clause, reason in expectations.items()
        )
    entries = tuple(expectations)
    for entry in entries:
        if not isinstance(entry, ExpectedFailure):
            msg = f"expected_failures holds {entry!r}: give an ExpectedFailure(…) or a dict"
            raise DeclarationError(msg)
    return entries
