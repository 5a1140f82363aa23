"""How much of each failure a page shows, so that no record makes a page that opens slowly.

Failures are told in full while there is room, then without their tensors, then by their row in the
table of clauses alone; the page says how many are told how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Final

from .html_failures import Failure, Place, failure, urgency
from .html_template import rendered
from .overall import counted

# Bytes of a whole page, with something to spare below two megabytes.
LARGEST_PAGE: Final = 1_900_000
# What failures may have in any case, and the part of it for those that are told in full.
_LEAST: Final = 300_000
_SHARE_IN_FULL: Final = 0.75

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Told:
    """The failures of the candidates as pieces of the page, by the number of the candidate."""

    pieces: dict[int, list[str]]
    anchors: frozenset[str]
    left_out: list[str]


NOTHING: Final = Told(pieces={}, anchors=frozenset(), left_out=[])


@dataclass(kw_only=True)
class _Room:
    """The bytes that are left, and what had to be shortened.

    ``ways`` are those in which the next failure may be told, in full first: one that found no room
    is given up for all that follow, so that a page stops where the important ends.
    """

    total: int
    used: int = 0
    ways: tuple[bool, ...] = (True, False)
    brief: int = 0
    missing: int = 0
    pieces: dict[Place, str] = field(default_factory=dict)

    def place(self, one: Failure) -> None:
        """Tell a failure in as many words as there is room for."""
        for full in self.ways:
            piece = rendered("failure.html.jinja", failure=one, full=full)
            needed = self.used + size(piece)
            if needed <= self.total * (_SHARE_IN_FULL if full else 1.0):
                self.used = needed
                self.brief += not full
                self.pieces[one.place] = piece
                return
            self.ways = tuple(way for way in self.ways if way != full)


def told(record: Record, found: Mapping[Place, str], room: int) -> Told:
    """Every failure of a record, in ``room`` bytes; candidates take turns."""
    own = _Room(total=max(room, _LEAST))
    order = _in_turns(record, found)
    for place in order:
        if own.ways:
            own.place(failure(record, place, found[place]))
    own.missing = len(order) - len(own.pieces)
    pieces: dict[int, list[str]] = {}
    for place in sorted(own.pieces, key=order.index):
        pieces.setdefault(place[0], []).append(own.pieces[place])
    shown = frozenset(found[place] for place in own.pieces)
    return Told(pieces=pieces, anchors=shown, left_out=_left_out(own))


def _in_turns(record: Record, found: Mapping[Place, str]) -> list[Place]:
    """The most urgent failure of every candidate, then the next one of each."""
    by_candidate = [
        sorted((place for place in found if place[0] == number), key=partial(urgency, record))
        for number in range(len(record["candidates"]))
    ]
    return [place for turn in zip_longest(*by_candidate) for place in turn if place is not None]


def _left_out(own: _Room) -> list[str]:
    said = []
    if own.brief:
        said.append(f"{counted(own.brief, 'failure')} shown without the tensors of its input")
    if own.missing:
        said.append(f"{counted(own.missing, 'failure')} shown in the table of clauses alone")
    return said


def size(text: str) -> int:
    """The bytes of a piece of a page."""
    return len(text.encode("utf-8", errors="backslashreplace"))
