"""The choices above the table of clauses: what can be filtered by, and how many rows each has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from . import html_words
from .html_rows import Row

Record = Mapping[str, Any]
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
