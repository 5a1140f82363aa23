"""The table of clauses on a page: rows, filters, and what neither passed nor failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from . import html_words
from .html_words import where, worst
from .marks import counted

# More rows than a browser filters without a pause; failures come first, the matrix has them all.
MOST_ROWS: Final = 2500
_LONGEST_REASON: Final = 240

Record = Mapping[str, Any]
Key = tuple[str, str, str]


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

    @property
    def needs_a_word(self) -> bool:
        """Whether it is neither passed nor not applicable."""
        return self.kind not in ("pass", "na")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that are shown, and in one sentence what is left out."""

    shown: list[Row]
    left_out: str


def rows(record: Record, anchors: Mapping[tuple[int, int], str]) -> Rows:
    """The rows of every candidate; ``anchors`` are of results with details, by their numbers."""
    every = [
        row
        for number, candidate in enumerate(record["candidates"])
        for row in _of(candidate, number, anchors)
    ]
    if len(every) <= MOST_ROWS:
        return Rows(shown=every, left_out="")
    told = [row for row in every if row.needs_a_word][:MOST_ROWS]
    said = (
        f"{counted(len(every) - len(told), 'row')} left out to keep this page usable: clauses that "
        "passed or are not applicable. The matrix and the record have them."
    )
    return Rows(shown=told, left_out=said)


def _of(candidate: Record, number: int, anchors: Mapping[tuple[int, int], str]) -> Iterator[Row]:
    groups: dict[Key, list[tuple[str, Record]]] = {}
    for place, clause in enumerate(candidate["clauses"]):
        key = (clause["id"], clause["status"], clause["reason"])
        groups.setdefault(key, []).append((anchors.get((number, place), ""), clause))
    for members in groups.values():
        yield _row(number, [clause for _, clause in members], members[0][0])


def _row(number: int, members: Sequence[Record], anchor: str) -> Row:
    first = members[0]
    violation = first["violation"]
    said = str(violation["message"]) if violation is not None and not first["reason"] else ""
    seconds = [member["seconds"] for member in members if member["seconds"] is not None]
    return Row(
        candidate=number,
        slug=str(first["id"]),
        family=str(first["family"]),
        level=str(first["level"]),
        status=str(first["status"]),
        kind=html_words.kind(first),
        dtypes=tuple(dict.fromkeys(filter(None, map(where, members)))),
        examples=sum(member["examples"] for member in members),
        binding=sum(member["binding"] for member in members),
        margin=worst(member["margin"] for member in members),
        seconds=sum(seconds) if seconds else None,
        reason=html_words.short(first["reason"] or said, _LONGEST_REASON),
        anchor=anchor,
    )


def by_candidate(shown: Sequence[Row]) -> list[tuple[int, list[Row]]]:
    """The rows of each candidate that has some, with its number."""
    return [(number, list(own)) for number, own in groupby(shown, key=lambda row: row.candidate)]


# Value, label, number of rows.
Choice = tuple[str, str, int]


def filters(record: Record, rows: Sequence[Row]) -> list[tuple[str, list[Choice]]]:
    """The groups of choices, those with a single choice left out."""
    groups = [
        ("status", _statuses(rows)),
        ("level", _counted([row.level for row in rows])),
        ("family", _counted([row.slug.partition(".")[0] for row in rows])),
        ("dtype", _counted([dtype for row in rows for dtype in row.dtypes])),
        ("candidate", _candidates(record, rows)),
    ]
    return [(name, choices) for name, choices in groups if len(choices) > 1]


def _statuses(rows: Sequence[Row]) -> list[Choice]:
    """A choice for each class of outcome, failures first."""
    numbers = Counter(row.kind for row in rows)
    return [
        (name, html_words.LABELS[name], numbers[name])
        for name in html_words.WORST_FIRST
        if numbers[name]
    ]


def _counted(values: Sequence[str]) -> list[Choice]:
    return [(value, value, number) for value, number in Counter(values).items()]


def _candidates(record: Record, rows: Sequence[Row]) -> list[Choice]:
    numbers = Counter(row.candidate for row in rows)
    names = [str(candidate["name"]) for candidate in record["candidates"]]
    return [(str(at), name, numbers[at]) for at, name in enumerate(names) if numbers[at]]


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
    """The groups that have something in them."""
    return [group for status, title in _GROUPS if (group := _group(record, status, title)).notes]


def _group(record: Record, status: str, title: str) -> Group:
    """Clauses by reason; candidates that have the same reason for the same clauses are one note."""
    by_reason: dict[tuple[int, str], list[Record]] = {}
    for number, candidate in enumerate(record["candidates"]):
        for clause in candidate["clauses"]:
            if clause["status"] == status:
                by_reason.setdefault((number, str(clause["reason"])), []).append(clause)
    merged: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (number, reason), clauses in by_reason.items():
        key = (reason, _unique(clause["id"] for clause in clauses), _dtypes(clauses))
        merged.setdefault(key, []).append(str(record["candidates"][number]["name"]))
    count = sum(len(clauses) for clauses in by_reason.values())
    kind = html_words.kind({"status": status, "level": ""})
    return Group(kind=kind, title=title, count=count, notes=list(_notes(merged)))


def _notes(
    merged: Mapping[tuple[str, tuple[str, ...], tuple[str, ...]], Sequence[str]],
) -> Iterator[Note]:
    for (reason, slugs, dtypes), names in merged.items():
        yield Note(
            reason=html_words.short(reason or "no reason is given", _LONGEST_NOTE),
            slugs=list(slugs),
            dtypes=list(dtypes),
            candidates=_some(list(names)),
        )


def _some(names: list[str]) -> list[str]:
    if len(names) <= _MOST_NAMES:
        return names
    return [*names[:_MOST_NAMES], f"and {len(names) - _MOST_NAMES} more"]


def _unique(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, names)))


def _dtypes(clauses: Sequence[Record]) -> tuple[str, ...]:
    return _unique(name for clause in clauses if (name := where(clause)))
