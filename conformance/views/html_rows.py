"""The rows of the table of clauses: results that differ in their dtype alone share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from . import html_words
from .html_record import where, worst
from .overall import counted

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
