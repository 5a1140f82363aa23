"""The tables of a page: candidates by clauses, the rows of all results, and reasons.

A cell of the matrix has one sign: a clause's worst result of all dtypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final

from . import html_words
from .complete import Record
from .html_words import Anchors, Result, anchored, group_by_clause, worst
from .wording import counted, where


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: its class, its words, and the anchor of the details."""

    kind: str
    label: str
    anchor: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """One clause and its result in every column."""

    slug: str
    level: str
    requirement: str
    cells: list[Cell]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Columns by their names, and the clauses family by family."""

    columns: list[str]
    by: str
    families: list[tuple[str, list[Line]]]
    legend: list[tuple[str, str, str]]


def matrix(record: Record, anchors: Anchors) -> Matrix:
    """Return the matrix of a run; a single candidate has a column for each dtype."""
    candidates = record["candidates"]
    results = [anchored(entry, number, anchors) for number, entry in enumerate(candidates)]
    if len(candidates) == 1:
        by, dtypes = "dtypes", dict.fromkeys(where(clause) for _, clause in results[0])
        columns = [
            (dtype or "results", [pair for pair in results[0] if where(pair[1]) == dtype])
            for dtype in dtypes
        ]
    else:
        by = "candidates"
        columns = [
            (str(entry["name"]), own) for entry, own in zip(candidates, results, strict=True)
        ]
    by_column = [group_by_clause(own) for _, own in columns]
    clauses: dict[str, Record] = {}
    for _, clause in chain.from_iterable(results):
        clauses.setdefault(str(clause["id"]), clause)
    families: dict[str, list[Line]] = {}
    for slug, clause in clauses.items():
        line = Line(
            slug=slug,
            level=str(clause["level"]),
            requirement=str(clause["requirement"]),
            cells=[_cell(own.get(slug, ())) for own in by_column],
        )
        families.setdefault(slug.partition(".")[0], []).append(line)
    lines = chain.from_iterable(families.values())
    shown = {cell.kind for line in lines for cell in line.cells}
    return Matrix(
        columns=[name for name, _ in columns],
        by=by,
        families=list(families.items()),
        legend=[(name, *words) for name, words in html_words.KINDS.items() if name in shown],
    )


def _cell(results: Sequence[Result]) -> Cell:
    if not results:
        return Cell(kind="absent", label="not run", anchor="")
    kind = html_words.worst_kind(clause for _, clause in results)
    anchor = next((at for at, clause in results if at and html_words.kind(clause) == kind), "")
    # ``passed``, or where dtypes differ ``passed in float32; failed in float16``.
    by_status: dict[str, list[str]] = {}
    for _, clause in results:
        by_status.setdefault(str(clause["status"]), []).append(where(clause))
    parts = [f"{status} in {', '.join(names)}" for status, names in by_status.items()]
    label = "; ".join(parts if len(parts) > 1 else by_status)
    return Cell(kind=kind, label=label, anchor=anchor)


# More rows would make a browser's filter slow; failures come first, the matrix has all.
MOST_ROWS: Final = 2500
_LONGEST_REASON: Final = 240


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a clause of a candidate with one status, in one or several dtypes."""

    candidate: int
    slug: str
    family: str
    level: str
    status: str
    kind: str
    dtypes: tuple[str, ...]
    examples: int
    binding: int
    margin: float | None
    seconds: float | None
    reason: str
    anchor: str


@dataclass(frozen=True, kw_only=True)
class ShownRows:
    """The shown rows, and a sentence on the rows left out."""

    shown: list[Row]
    left_out: str


def rows(record: Record, anchors: Anchors) -> ShownRows:
    """Return the rows of every candidate; of too many only those neither passed nor n/a."""
    every = [
        row
        for number, candidate in enumerate(record["candidates"])
        for row in _rows(candidate, number, anchors)
    ]
    if len(every) <= MOST_ROWS:
        return ShownRows(shown=every, left_out="")
    telling = [row for row in every if row.kind not in ("pass", "na")]
    shown = telling[:MOST_ROWS]
    which = "clauses that passed or are not applicable"
    which += f", and {len(telling) - MOST_ROWS:,} others" if len(telling) > MOST_ROWS else ""
    left_out = (
        f"{counted(len(every) - len(shown), 'row')} left out to keep this page usable: {which}. "
        "The matrix and the record have them."
    )
    return ShownRows(shown=shown, left_out=left_out)


def _rows(candidate: Record, number: int, anchors: Anchors) -> Iterator[Row]:
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for anchor, clause in anchored(candidate, number, anchors):
        key = (clause["id"], clause["status"], clause["reason"])
        groups.setdefault(key, []).append((anchor, clause))
    for results in groups.values():
        anchor, first = results[0]
        members = [clause for _, clause in results]
        reason = str(first["reason"] or (first["violation"] or {}).get("message", ""))
        seconds = [member["seconds"] for member in members if member["seconds"] is not None]
        yield Row(
            candidate=number,
            slug=str(first["id"]),
            family=str(first["family"]),
            level=str(first["level"]),
            status=str(first["status"]),
            kind=html_words.kind(first),
            dtypes=_unique(map(where, members)),
            examples=sum(member["examples"] for member in members),
            binding=sum(member["binding"] for member in members),
            margin=worst(member["margin"] for member in members),
            seconds=sum(seconds) if seconds else None,
            reason=html_words.short(reason, _LONGEST_REASON),
            anchor=anchor,
        )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


def group_by_candidate(shown: Sequence[Row]) -> list[tuple[int, list[Row]]]:
    """Group the rows by candidate number."""
    return [(number, list(own)) for number, own in groupby(shown, key=lambda row: row.candidate)]


# Value, label, number of rows.
Choice = tuple[str, str, int]


def filters(record: Record, rows: Sequence[Row]) -> list[tuple[str, list[Choice]]]:
    """The groups of choices, those with a single choice left out."""
    kinds, owners = Counter(row.kind for row in rows), Counter(row.candidate for row in rows)
    names = [str(candidate["name"]) for candidate in record["candidates"]]
    groups = [
        # Failures first.
        (
            "status",
            [
                (name, html_words.LABELS[name], kinds[name])
                for name in html_words.WORST_FIRST
                if kinds[name]
            ],
        ),
        ("level", _choices(row.level for row in rows)),
        ("family", _choices(row.slug.partition(".")[0] for row in rows)),
        ("dtype", _choices(dtype for row in rows for dtype in row.dtypes)),
        ("candidate", [(str(at), name, owners[at]) for at, name in enumerate(names) if owners[at]]),
    ]
    return [(name, choices) for name, choices in groups if len(choices) > 1]


def _choices(values: Iterable[str]) -> list[Choice]:
    return [(value, value, number) for value, number in Counter(values).items()]


# Status, heading.
_GROUPS: Final = (
    ("untestable", "Could not be tested"),
    ("unexpected-pass", "Passed against expectation"),
    ("expected-failure", "Expected failures"),
    ("not-applicable", "Not applicable"),
)
_LONGEST_NOTE: Final = 600
_MOST_NAMES: Final = 40


@dataclass(frozen=True, kw_only=True)
class Note:
    """Clauses of a status that share a reason: the reason, the slugs, and whose they are."""

    reason: str
    slugs: list[str]
    dtypes: list[str]
    candidates: list[str]


@dataclass(frozen=True, kw_only=True)
class Group:
    """All notes of one status."""

    kind: str
    title: str
    count: int
    notes: list[Note]


def groups(record: Record) -> list[Group]:
    """Return the groups that are not empty."""
    return [group for status, title in _GROUPS if (group := _group(record, status, title)).notes]


def _group(record: Record, status: str, title: str) -> Group:
    """Group clauses by reason; candidates with equal reasons and clauses share a note."""
    by_reason: dict[tuple[int, str], list[Record]] = {}
    for number, candidate in enumerate(record["candidates"]):
        for clause in candidate["clauses"]:
            if clause["status"] == status:
                by_reason.setdefault((number, str(clause["reason"])), []).append(clause)
    merged: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (number, reason), clauses in by_reason.items():
        slugs = _unique(str(clause["id"]) for clause in clauses)
        key = (reason, slugs, _unique(map(where, clauses)))
        merged.setdefault(key, []).append(str(record["candidates"][number]["name"]))
    notes = []
    for (reason, slugs, dtypes), names in merged.items():
        more = len(names) - _MOST_NAMES
        notes.append(
            Note(
                reason=html_words.short(reason or "no reason is given", _LONGEST_NOTE),
                slugs=list(slugs),
                dtypes=list(dtypes),
                candidates=[*names[:_MOST_NAMES], *([f"and {more} more"] if more > 0 else [])],
            )
        )
    count = len({(number, one["id"]) for (number, _), own in by_reason.items() for one in own})
    kind = html_words.kind({"status": status, "level": ""})
    return Group(kind=kind, title=title, count=count, notes=notes)
