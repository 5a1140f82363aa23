"""A failure as a picture: weights expected and actual, their difference, hidden keys.

The record has a picture at one failure or a few of each diagnosis; see
:class:`conformance.base.record.PictureEntry`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .complete import Record
from .html_words import number
from .wording import where

Cells = Sequence[Sequence[float | None]]
Marks = Sequence[Sequence[bool]]
_AXES: Final = ("queries", "keys")


@dataclass(frozen=True, kw_only=True)
class PictureTable:
    """One table of a picture, ``[query][key]``; ``scale`` names its numbers.

    ``weight`` for weights, ``logit`` for their logarithms, ``difference`` for actual minus
    expected. ``end`` is the absolute value at which its colours end.
    """

    title: str
    scale: str
    cells: Cells
    end: float


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The content of a picture.

    title, text: the name of the weights, and a sentence on the worst of them.
    first, worst: the query and key at which the tables begin, and the place of the worst weight in
        them.
    hidden, wrong: keys that a query may not attend; weights that rounding does not explain.
    tables: weights expected, actual and their difference; the same of logits where these are wrong.
    """

    title: str
    text: str
    first: tuple[int, int]
    worst: tuple[int, int]
    hidden: Marks
    wrong: Marks
    tables: list[PictureTable]


def picture_of(candidate: Record, clause: Record) -> tuple[Picture, Record] | None:
    """Return the picture of a failure, and the result with the pictured input.

    Without an own picture the failure shares the picture of a result with the same mistake. None
    without a picture in the record. ``candidate`` and ``clause``, a result of the candidate, are of
    a completed record.
    """
    names = {entry.get("name") for entry in clause["diagnosis"] if is_named(entry)}
    names |= {clause["explained_by"]} if clause.get("explained_by") else set()
    same = [other for other in candidate["clauses"] if where(other) == where(clause)]
    for result in (clause, *same):
        for entry in result["diagnosis"]:
            if result is clause or (is_named(entry) and entry.get("name") in names):
                drawn = read_picture(entry.get("picture"))
                if drawn is not None:
                    return drawn, result
    return None


def is_named(entry: Record) -> bool:
    """Tell whether an entry names a mistake: facts on an unknown one hold for one failure only."""
    return float(entry.get("confidence") or 0) > 0


def read_picture(data: Any) -> Picture | None:
    """A picture of the record; None for what is none, or does not fit together."""
    if not isinstance(data, dict):
        return None
    expected, got = _numbers(data.get("expected")), _numbers(data.get("got"))
    hidden, wrong = _rows(data.get("hidden")), _rows(data.get("wrong"))
    first, worst, sizes = (_pair(data.get(name)) for name in ("first", "worst", "sizes"))
    if not _fit(expected, got, hidden, wrong) or not (first and worst and sizes):
        return None
    shape = (len(expected), len(expected[0]))
    inside = (worst[0] - first[0], worst[1] - first[1])
    if not all(0 <= place < size for place, size in zip(inside, shape, strict=True)):
        return None
    tables = _tables("weights", "weight", expected, got)
    logits = data.get("logits")
    if isinstance(logits, dict):
        pair = [_numbers(logits.get(name)) for name in ("expected", "got")]
        if _fit(expected, *pair):
            tables += _tables("logits", "logit", *pair)
    return Picture(
        title=_title(data, [*zip(_AXES, first, shape, sizes, strict=True)]),
        text=str(data.get("text") or ""),
        first=first,
        worst=inside,
        hidden=hidden,
        wrong=wrong,
        tables=tables,
    )


def _rows(rows: Any) -> list[list[Any]]:
    fits = isinstance(rows, list) and all(isinstance(row, list) for row in rows)
    return rows if fits else []


def _numbers(rows: Any) -> list[list[float | None]]:
    return [[number(cell) for cell in row] for row in _rows(rows)]


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and [type(entry) for entry in value] == [int, int]:
        return value[0], value[1]
    return None


def _fit(*tables: Sequence[Sequence[Any]]) -> bool:
    shapes = {(len(rows), *map(len, rows)) for rows in tables}
    (rows, *widths) = shapes.pop()
    return not shapes and rows > 0 and len(set(widths)) == 1 and widths[0] > 0


def _tables(what: str, scale: str, expected: Cells, got: Cells) -> list[PictureTable]:
    apart = [
        [_difference(*pair) for pair in zip(*rows, strict=True)]
        for rows in zip(got, expected, strict=True)
    ]
    end = 1.0 if scale == "weight" else max(_largest(expected), _largest(got))
    return [
        PictureTable(title=f"expected {what}", scale=scale, cells=expected, end=end),
        PictureTable(title=f"got {what}", scale=scale, cells=got, end=end),
        PictureTable(title="got - expected", scale="difference", cells=apart, end=_largest(apart)),
    ]


def _largest(cells: Cells) -> float:
    sizes = (abs(cell) for row in cells for cell in row if cell is not None)
    return max(filter(math.isfinite, sizes), default=0.0)


def _difference(got: float | None, expected: float | None) -> float | None:
    if got is None or expected is None:
        return None
    return 0.0 if got == expected else got - expected


def _title(data: Record, axes: Sequence[tuple[str, int, int, int]]) -> str:
    """Return ``weights of head 1 of 4, where they differ most``, and the part shown."""
    counted = (("batch item", "item", "items"), ("head", "head", "heads"))
    chosen = [
        f"{words} {data.get(one)} of {data[every]}"
        for words, one, every in counted
        if isinstance(data.get(every), int) and data[every] > 1
    ]
    text = f"weights of {', '.join(chosen)}, where they differ most" if chosen else "weights"
    return "; ".join([f"{text}: query by key", *_parts(axes)])


def _parts(axes: Sequence[tuple[str, int, int, int]]) -> Iterator[str]:
    for name, first, count, size in axes:
        if count < size:
            yield f"{name} {first} to {first + count - 1} of {size}"
