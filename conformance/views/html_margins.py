"""Margins on a logarithmic axis: how near each clause came to its bound, or how far beyond.

An inline SVG a line, by template: some 30 bytes a mark, text that stays text at any width, and the
colours of the page. matplotlib would bring a second to every render and a tenth of a megabyte to
every figure, for a plot whose marks are all on one axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from . import html_words
from .complete import Record
from .html_words import Anchors, Result, anchored, by_slug, worst
from .wording import counted, where

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
class MarginMark:
    """The margin of one result: its shape, its place and its words."""

    shape: int
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One clause of one candidate."""

    slug: str
    level: str
    worst: float
    marks: list[MarginMark]
    anchor: str

    @property
    def beyond(self) -> bool:
        """Whether the margin exceeds the bound; NaN does."""
        return not self.worst <= 1


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The lanes of one candidate; ``left_out`` counts those that are not drawn."""

    candidate: int
    name: str
    lanes: list[Lane]
    shapes: list[tuple[int, str]]
    left_out: str


def axis(record: Record) -> Axis:
    """One axis for all candidates, so that they can be compared."""
    margins = (clause["margin"] for entry in record["candidates"] for clause in entry["clauses"])
    drawn = [
        math.log10(margin)
        for margin in margins
        if margin is not None and math.isfinite(margin) and margin > 0
    ]
    low = min(map(math.floor, drawn), default=0)
    high = max(map(math.ceil, drawn), default=0)
    return Axis(
        low=max(_MOST_SHOWN[0], min(low, _LEAST_SHOWN[0])),
        high=min(_MOST_SHOWN[1], max(high, _LEAST_SHOWN[1])),
    )


def plots(record: Record, scale: Axis, anchors: Anchors) -> list[Plot]:
    """The plot of every candidate that has margins."""
    shapes = shapes_of(record)
    every = []
    for number, candidate in enumerate(record["candidates"]):
        results = by_slug(anchored(candidate, number, anchors)).values()
        lanes = [_lane(own, scale, shapes) for own in map(_with_margin, results) if own]
        lanes.sort(
            key=lambda lane: math.inf if math.isnan(lane.worst) else lane.worst, reverse=True
        )
        every.append((number, candidate, lanes))
    many = sum(len(lanes) for _, _, lanes in every) > _MOST_LINES
    most = max(_FEW_LINES, _MOST_LINES // len(every)) if many else _MOST_LINES
    drawn = []
    for number, candidate, lanes in every:
        if lanes:
            left = len(lanes) - most
            own = dict.fromkeys(map(where, candidate["clauses"]))
            drawn.append(
                Plot(
                    candidate=number,
                    name=str(candidate["name"]),
                    lanes=lanes[:most],
                    shapes=[(shapes[name], name) for name in own if name],
                    left_out=f"{counted(left, 'clause')} further below the bound left out"
                    if left > 0
                    else "",
                )
            )
    return drawn


def shapes_of(record: Record) -> dict[str, int]:
    """A shape for each dtype and device of the run; the fifth has the first shape again."""
    names = [where(clause) for entry in record["candidates"] for clause in entry["clauses"]]
    return {name: number % SHAPES for number, name in enumerate(dict.fromkeys(names))}


def _with_margin(results: list[Result]) -> list[Result]:
    return [pair for pair in results if pair[1]["margin"] is not None]


def _lane(results: list[Result], scale: Axis, shapes: dict[str, int]) -> Lane:
    """The line of one clause, with a mark for each of its results."""
    clauses = [clause for _, clause in results]
    marks = []
    for clause in clauses:
        label = f"{where(clause)} {html_words.margin(clause['margin'])}".strip()
        place = scale.at(clause["margin"])
        marks.append(MarginMark(shape=shapes[where(clause)], at=place, label=label))
    largest = worst(clause["margin"] for clause in clauses)
    return Lane(
        slug=str(clauses[0]["id"]),
        level=str(clauses[0]["level"]),
        worst=math.inf if largest is None else largest,
        marks=marks,
        anchor=next((anchor for anchor, _ in results if anchor), ""),
    )
