"""Reading a file of expected failures: TOML with a table ``[[expected]]`` for each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from ..errors import DeclarationError, UsageError, did_you_mean
from .expected import ExpectedFailure, Place
from .files import parse_toml

_HEADER: Final = re.compile(r"""[ \t]*\[\[[ \t]*(expected|"expected"|'expected')[ \t]*\]\]""")
_LIST: Final = re.compile(r"""[ \t]*(expected|"expected"|'expected')[ \t]*=""")
_KEY: Final = re.compile(r"""[ \t]*["']?([A-Za-z_-]+)["']?[ \t]*=""")


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines of one entry, counted from 1.

    ``first`` is the first comment directly above it, ``header`` its ``[[expected]]``, ``end`` the
    line after its last, and ``keys`` the line of each of its keys.
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
    """The lines of the headers; one that stands in a text of several lines is none."""
    begin = 0
    for number, line in enumerate(lines, 1):
        if _HEADER.match(line) and _complete(lines[begin : number - 1]):
            begin = number - 1
            yield number


def _first(lines: Sequence[str], header: int) -> int:
    """The first of the comments that stand directly above a header, else the header."""
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
    """Whether some lines are TOML by themselves: no text or list goes on behind them."""
    try:
        tomllib.loads("\n".join([*lines, ""]))
    except tomllib.TOMLDecodeError:
        return False
    return True


KEYS: Final = tuple(field.name for field in fields(ExpectedFailure) if field.name != "place")
_NEEDED: Final = ("clause", "reason")


def read_text(path: Path) -> str:
    """The text of a file; raises UsageError. Its newlines stay as they are."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        msg = f"there is no file {path} with expected failures"
        raise UsageError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as TOML: {error}"
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
    """One entry; raises UsageError that says where it is and what is wrong with it."""
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
