"""Margins on a logarithmic axis: how near each clause came to its bound, or how far beyond.

An inline SVG a line, by template: some 30 bytes a mark, text that stays text at any width, and the
colours of the page. matplotlib would bring a second to every render and a tenth of a megabyte to
every figure, for a plot whose marks are all on one axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import html_words
from .html_words import where, worst
from .marks import counted

Record = Mapping[str, Any]

# The axis always shows these decades, and never more than those.
_LEAST_SHOWN: Final = (-3, 1)
_MOST_SHOWN: Final = (-8, 8)
# Where the axis begins and ends, in percent; zero and infinity stand outside it.
_LEFT: Final = 5.0
_RIGHT: Final = 94.0
_ZERO: Final = 2.0
_INFINITE: Final = 97.5
_MOST_TICKS: Final = 7
# Lines that a candidate's plot has when all candidates' would be too many.
_MOST_LINES: Final = 1200
_FEW_LINES: Final = 20
# Marks differ in shape, too: circle, square, diamond, triangle.
SHAPES: Final = 4


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The powers of ten from ``low`` to ``high``."""

    low: int
    high: int

    def at(self, margin: float) -> float:
        """Where a margin stands, in percent of the width."""
        if margin <= 0:
            return _ZERO
        if not math.isfinite(margin) or margin > 10.0**self.high:
            return _INFINITE
        share = (math.log10(margin) - self.low) / (self.high - self.low)
        return round(_LEFT + max(0.0, share) * (_RIGHT - _LEFT), 1)

    @property
    def bound(self) -> float:
        """Where the bound stands."""
        return self.at(1.0)

    @property
    def ticks(self) -> list[tuple[float, int]]:
        """Places and exponents of the powers of ten that are written out; 0 is among them."""
        step = max(1, math.ceil((self.high - self.low) / _MOST_TICKS))
        shown = [power for power in range(self.low, self.high + 1) if power % step == 0]
        return [(self.at(10.0**power), power) for power in shown]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One result: which shape stands where, and what it says in words."""

    shape: int
    at: float
    said: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One clause of one candidate."""

    slug: str
    level: str
    worst: float
    marks: list[Mark]
    anchor: str

    @property
    def beyond(self) -> bool:
        """Whether it is beyond the bound."""
        return not self.worst <= 1


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The lanes of one candidate; ``left_out`` says what is not drawn."""

    candidate: int
    name: str
    lanes: list[Lane]
    shapes: list[tuple[int, str]]
    left_out: str


def axis(record: Record) -> Axis:
    """One axis for all candidates, so that they can be compared."""
    found = [
        math.log10(clause["margin"])
        for candidate in record["candidates"]
        for clause in candidate["clauses"]
        if clause["margin"] is not None and math.isfinite(clause["margin"]) and clause["margin"] > 0
    ]
    low = min((math.floor(value) for value in found), default=0)
    high = max((math.ceil(value) for value in found), default=0)
    return Axis(
        low=max(_MOST_SHOWN[0], min(low, _LEAST_SHOWN[0])),
        high=min(_MOST_SHOWN[1], max(high, _LEAST_SHOWN[1])),
    )


def plots(record: Record, scale: Axis, anchors: Mapping[tuple[int, int], str]) -> list[Plot]:
    """The plot of every candidate that has margins."""
    shapes = shapes_of(record)
    every = [
        (number, candidate, _lanes(number, candidate, scale, shapes, anchors))
        for number, candidate in enumerate(record["candidates"])
    ]
    many = sum(len(lanes) for _, _, lanes in every) > _MOST_LINES
    most = max(_FEW_LINES, _MOST_LINES // len(every)) if many else None
    return [
        _plot(number, candidate, lanes, shapes, most) for number, candidate, lanes in every if lanes
    ]


def shapes_of(record: Record) -> dict[str, int]:
    """A shape for each dtype and device of the run; the fifth has the first one's again."""
    names = [where(clause) for one in record["candidates"] for clause in one["clauses"]]
    return {name: number % SHAPES for number, name in enumerate(dict.fromkeys(names))}


def _lanes(
    number: int,
    candidate: Record,
    scale: Axis,
    shapes: Mapping[str, int],
    anchors: Mapping[tuple[int, int], str],
) -> list[Lane]:
    groups: dict[str, list[tuple[str, Record]]] = {}
    for place, clause in enumerate(candidate["clauses"]):
        if clause["margin"] is not None:
            entry = (anchors.get((number, place), ""), clause)
            groups.setdefault(str(clause["id"]), []).append(entry)
    lanes = [_lane(slug, members, scale, shapes) for slug, members in groups.items()]
    return sorted(lanes, key=_urgency, reverse=True)


def _urgency(lane: Lane) -> float:
    return math.inf if math.isnan(lane.worst) else lane.worst


def _lane(
    slug: str, members: Sequence[tuple[str, Record]], scale: Axis, shapes: Mapping[str, int]
) -> Lane:
    clauses = [clause for _, clause in members]
    largest = worst(clause["margin"] for clause in clauses)
    return Lane(
        slug=slug,
        level=str(clauses[0]["level"]),
        worst=math.inf if largest is None else largest,
        marks=_marks(clauses, scale, shapes),
        anchor=next((anchor for anchor, _ in members if anchor), ""),
    )


def _marks(clauses: Iterable[Record], scale: Axis, shapes: Mapping[str, int]) -> list[Mark]:
    return [
        Mark(
            shape=shapes[where(clause)],
            at=scale.at(clause["margin"]),
            said=f"{where(clause)} {html_words.margin(clause['margin'])}".strip(),
        )
        for clause in clauses
    ]


def _plot(
    number: int, candidate: Record, lanes: list[Lane], shapes: Mapping[str, int], most: int | None
) -> Plot:
    shown = lanes[:most]
    own = dict.fromkeys(where(clause) for clause in candidate["clauses"])
    left = len(lanes) - len(shown)
    said = f"{counted(left, 'clause')} further below the bound left out" if left else ""
    return Plot(
        candidate=number,
        name=str(candidate["name"]),
        lanes=shown,
        shapes=[(shapes[name], name) for name in own if name],
        left_out=said,
    )
