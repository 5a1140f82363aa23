"""Candidates x clauses: one sign a cell, the worst of a clause's results in all dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from . import html_words
from .html_words import where

Record = Mapping[str, Any]
Results = Sequence[tuple[str, Record]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: its class, its sign, what it says in words, and where the details are."""

    kind: str
    sign: str
    said: str
    anchor: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """One clause and what became of it in every column."""

    slug: str
    level: str
    requirement: str
    cells: list[Cell]

    @property
    def same(self) -> bool:
        """Whether every column that was asked says the same."""
        return len({cell.kind for cell in self.cells} - {"na", "absent"}) <= 1


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Columns by their names, and the clauses family by family."""

    columns: list[str]
    by: str
    families: list[tuple[str, list[Line]]]
    legend: list[tuple[str, str, str]]


def matrix(record: Record, anchors: Mapping[tuple[int, int], str]) -> Matrix:
    """The matrix of a run; a single candidate has a column for each of its dtypes."""
    candidates = record["candidates"]
    if len(candidates) == 1:
        by, columns = "dtypes", _by_dtype(candidates[0], anchors)
    else:
        by, columns = "candidates", _by_candidate(candidates, anchors)
    clauses = _clauses(candidates)
    lines = [_line(slug, clause, columns) for slug, clause in clauses.items()]
    return Matrix(
        columns=[name for name, _ in columns],
        by=by,
        families=[(name, list(group)) for name, group in _families(lines)],
        legend=_legend(lines),
    )


def _by_candidate(
    candidates: Sequence[Record], anchors: Mapping[tuple[int, int], str]
) -> list[tuple[str, dict[str, Results]]]:
    return [
        (str(candidate["name"]), _by_slug(number, candidate["clauses"], anchors))
        for number, candidate in enumerate(candidates)
    ]


def _by_dtype(
    candidate: Record, anchors: Mapping[tuple[int, int], str]
) -> list[tuple[str, dict[str, Results]]]:
    found = []
    for name in dict.fromkeys(map(where, candidate["clauses"])):
        shown = name or "results"
        own = _by_slug(0, candidate["clauses"], anchors, only=name)
        found.append((shown, own))
    return found


def _by_slug(
    number: int,
    clauses: Sequence[Record],
    anchors: Mapping[tuple[int, int], str],
    only: str | None = None,
) -> dict[str, Results]:
    found: dict[str, list[tuple[str, Record]]] = {}
    for place, clause in enumerate(clauses):
        if only is None or where(clause) == only:
            entry = (anchors.get((number, place), ""), clause)
            found.setdefault(str(clause["id"]), []).append(entry)
    return dict(found)


def _clauses(candidates: Sequence[Record]) -> dict[str, Record]:
    """Every clause of the run by its slug, in the order in which they first appear."""
    found: dict[str, Record] = {}
    for candidate in candidates:
        for clause in candidate["clauses"]:
            found.setdefault(str(clause["id"]), clause)
    return found


def _line(slug: str, clause: Record, columns: list[tuple[str, dict[str, Results]]]) -> Line:
    cells = [_cell(results.get(slug, ())) for _, results in columns]
    return Line(
        slug=slug,
        level=str(clause["level"]),
        requirement=str(clause["requirement"]),
        cells=cells,
    )


def _cell(results: Results) -> Cell:
    if not results:
        return Cell(kind="absent", sign="", said="not run", anchor="")
    kinds = {html_words.kind(clause) for _, clause in results}
    worst = next(name for name in html_words.WORST_FIRST if name in kinds)
    anchor = next((at for at, clause in results if at and html_words.kind(clause) == worst), "")
    return Cell(kind=worst, sign=html_words.sign(worst), said=_said(results), anchor=anchor)


def _said(results: Results) -> str:
    """``passed``, or where dtypes differ ``passed in float32, failed in float16``."""
    by_status: dict[str, list[str]] = {}
    for _, clause in results:
        by_status.setdefault(str(clause["status"]), []).append(where(clause))
    if len(by_status) == 1:
        return next(iter(by_status))
    return "; ".join(f"{status} in {', '.join(names)}" for status, names in by_status.items())


def _families(lines: Sequence[Line]) -> Iterator[tuple[str, Iterator[Line]]]:
    """The lines grouped by family, families in the order in which they first appear."""
    order = list(dict.fromkeys(map(_family, lines)))
    return groupby(sorted(lines, key=lambda line: order.index(_family(line))), key=_family)


def _family(line: Line) -> str:
    return line.slug.partition(".")[0]


def _legend(lines: Sequence[Line]) -> list[tuple[str, str, str]]:
    """Class, sign and meaning of what appears in the matrix."""
    seen = {cell.kind for line in lines for cell in line.cells}
    return [(name, *html_words.KINDS[name]) for name in html_words.KINDS if name in seen]
