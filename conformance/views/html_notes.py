"""What neither passed nor failed: expected failures, untestable and not-applicable clauses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import html_words
from .html_record import where

Record = Mapping[str, Any]

# Status, heading.
_GROUPS: Final = (
    ("untestable", "Could not be tested"),
    ("unexpected-pass", "Passed against expectation"),
    ("expected-failure", "Expected failures"),
    ("not-applicable", "Not applicable"),
)
_LONGEST_REASON: Final = 600
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
            reason=html_words.short(reason or "no reason is given", _LONGEST_REASON),
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
