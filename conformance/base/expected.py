"""Expected failures: a clause, a reason, the kind of failure and the last day of acceptance.

Files of expected failures are TOML, with a table ``[[expected]]`` an entry.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ..errors import DeclarationError, UsageError, did_you_mean
from .files import parse_toml
from .printable_text import repr_of
from .profile import DTYPES
from .results import KINDS

UNEXPECTED_UNLESS_NAMED: Final = ("raised", "crashed", "hung")
_TEXTS: Final = ("clause", "reason", "candidate", "dtype", "device")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of an expectation's source, for sentences that say what to change.

    ``file`` is a path, or a place in words; ``line`` is the line of the whole entry and ``keys``
    the lines of its keys, as far as known.
    """

    file: str
    line: int | None = None
    keys: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """``line 7 of known.toml``."""
        return self.where("")

    def where(self, key: str) -> str:
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
        """Require a known kind of violation and a dtype in which candidates are judged."""
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
    """The day in a date or a text; raises DeclarationError for anything else."""
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
    text = isinstance(expectations, str) or not isinstance(expectations, Iterable)
    entries: tuple[Any, ...] = (expectations,) if text else tuple(expectations)
    for entry in entries:
        if not isinstance(entry, ExpectedFailure):
            msg = (
                f"expected_failures holds {repr_of(entry)}: give a dict of clause to reason, or a "
                "list of ExpectedFailure(…)"
            )
            raise DeclarationError(msg)
    return entries


_HEADER: Final = re.compile(r"""[ \t]*\[\[[ \t]*(expected|"expected"|'expected')[ \t]*\]\]""")
_LIST: Final = re.compile(r"""[ \t]*(expected|"expected"|'expected')[ \t]*=""")
_KEY: Final = re.compile(r"""[ \t]*["']?([A-Za-z_-]+)["']?[ \t]*=""")


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines of one entry, counted from 1.

    ``first`` is the first comment directly above the entry, ``header`` its ``[[expected]]``,
    ``end`` the line after the entry's last, and ``keys`` the lines of its keys.
    """

    first: int
    header: int
    end: int
    keys: dict[str, int] = field(default_factory=dict)


def entry_lines(text: str) -> list[Lines]:
    """The entries written as ``[[expected]]``, in order; the text must be TOML."""
    lines = text.split("\n")
    headers = list(_headers(lines))
    firsts = [_first(lines, header) for header in headers]
    ends = [*firsts, len(lines) + 1][1:]
    return [
        Lines(first=first, header=header, end=end, keys=_keys(lines, header, end))
        for first, header, end in zip(firsts, headers, ends, strict=True)
    ]


def list_line(text: str) -> int | None:
    """The line of ``expected = [...]``, for entries that are not written as tables."""
    return next((n for n, line in enumerate(text.split("\n"), 1) if _LIST.match(line)), None)


def _headers(lines: Sequence[str]) -> Iterator[int]:
    """The lines of the headers, without lookalikes inside texts of several lines."""
    begin = 0
    for number, line in enumerate(lines, 1):
        if _HEADER.match(line) and _complete(lines[begin : number - 1]):
            begin = number - 1
            yield number


def _first(lines: Sequence[str], header: int) -> int:
    """The first comment directly above a header, else the header."""
    first = header
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


def _keys(lines: Sequence[str], header: int, end: int) -> dict[str, int]:
    lines_by_key: dict[str, int] = {}
    for number in range(header + 1, end):
        key = _KEY.match(lines[number - 1])
        if key and _complete(lines[header : number - 1]):
            lines_by_key.setdefault(key[1], number)
    return lines_by_key


def _complete(lines: Sequence[str]) -> bool:
    """Whether lines are complete TOML: no text or list goes on behind them."""
    try:
        tomllib.loads("\n".join([*lines, ""]))
    except (ValueError, RecursionError):
        return False
    return True


KEYS: Final = tuple(field.name for field in fields(ExpectedFailure) if field.name != "place")
_NEEDED: Final = ("clause", "reason")


def read_text(path: Path) -> str:
    """The text of a file, newlines unchanged; raises UsageError."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        msg = f"there is no file {path} with expected failures: --write-expected {path} writes it"
        raise UsageError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as TOML: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg) from None


def parse(text: str, path: Path) -> tuple[ExpectedFailure, ...]:
    """The entries of a file's text; raises UsageError that names file and entry."""
    data = parse_toml(text, path)
    entries = data.get("expected", [])
    for key in data:
        if key != "expected":
            msg = f"{path} has an unknown key {key!r}{did_you_mean(key, ['expected'])}"
            raise UsageError(msg)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        msg = f"{path}: write each expected failure as a table [[expected]]"
        raise UsageError(msg)
    places = places_of(text, path, len(entries))
    return tuple(
        read_entry(entry, _named(path, number, place), place)
        for number, (entry, place) in enumerate(zip(entries, places, strict=True), 1)
    )


def places_of(text: str, path: Path, count: int) -> list[Place]:
    """Where each of the entries of a file stands."""
    entry_line_ranges = entry_lines(text)
    if len(entry_line_ranges) != count:
        return [Place(file=str(path), line=list_line(text))] * count
    return [
        Place(file=str(path), line=entry.header, keys=entry.keys) for entry in entry_line_ranges
    ]


def _named(path: Path, number: int, place: Place) -> str:
    line = "" if place.line is None else f"line {place.line}, "
    return f"{path}, {line}entry {number}"


def read_entry(data: dict[str, Any], where: str, place: Place | None = None) -> ExpectedFailure:
    """An expected failure from data; raises UsageError with the place and the defect."""
    for key in data:
        if key not in KEYS:
            msg = f"{where} has an unknown key {key!r}{did_you_mean(key, KEYS)}"
            raise UsageError(msg)
    for key in _NEEDED:
        if key not in data:
            msg = f"{where} has no {key!r}: give a clause and the reason why it is known to fail"
            raise UsageError(msg)
    try:
        return ExpectedFailure(**data, place=place)
    except DeclarationError as error:
        msg = f"{where}: {error}"
        raise UsageError(msg) from None
