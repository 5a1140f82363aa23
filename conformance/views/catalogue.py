"""The clauses for a person: a table of all, a page for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich.table import Table
from rich.text import Text

from .printing import Fitting, indented, write

_SENTENCE_WIDTH = 30

_LABELS = {
    "sentence": "requires",
    "level": "level",
    "source": "source",
    "origin": "comes from",
    "applies": "applies",
    "counterfactual": "counts when it can tell apart",
}


def show_list(entries: Sequence[Mapping[str, Any]], file: IO[str]) -> None:
    """One row a clause: slug, level, sentence."""
    table = Table(box=None, pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("level", no_wrap=True)
    table.add_column("requirement")
    rows: list[Any] = []
    for entry in entries:
        table.add_row(entry["id"], entry["level"], entry["sentence"])
        rows.extend([Text(entry["id"]), indented(f"{entry['level']}: {entry['sentence']}", 2)])
    before = sum(max(len(entry[name]) + 2 for entry in entries) for name in ("id", "level"))
    write([Fitting(table, rows, least=before + _SENTENCE_WIDTH)], file)


def show_clause(entry: Mapping[str, Any], file: IO[str]) -> None:
    """Everything there is to know about one clause."""
    lines: list[Any] = [Text(entry["id"], style="bold")]
    for key, label in _LABELS.items():
        if entry[key]:
            lines.append(indented(f"{label}: {entry[key]}", 2))
        elif key == "counterfactual":
            lines.append(indented("counts on every example", 2))
    write(lines, file)
