"""Where the entries of a file of expected failures stand, so that a sentence can name a line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

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
    found: dict[str, int] = {}
    for number in range(header + 1, end):
        key = _KEY.match(lines[number - 1])
        if key and _complete(lines[header : number - 1]):
            found.setdefault(key[1], number)
    return found


def _complete(lines: Sequence[str]) -> bool:
    """Whether some lines are TOML by themselves: no text or list goes on behind them."""
    try:
        tomllib.loads("\n".join([*lines, ""]))
    except tomllib.TOMLDecodeError:
        return False
    return True
