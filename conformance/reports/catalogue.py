"""The clauses for a person: a table of all, a page for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, Any

from rich.table import Table
from rich.text import Text

from .printing import indented, write

_LABELS = {
    "sentence": "requires",
    "level": "level",
    "source": "source",
    "applies": "applies",
    "counterfactual": "counts when it can tell apart",
}


def show_list(entries: Iterable[Mapping[str, Any]], file: IO[str]) -> None:
    """One row a clause: slug, level, sentence."""
    table = Table(box=None, pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("level")
    table.add_column("requirement")
    for entry in entries:
        table.add_row(entry["id"], entry["level"], entry["sentence"])
    write([table], file)


def show_clause(entry: Mapping[str, Any], file: IO[str]) -> None:
    """Everything there is to know about one clause."""
    lines: list[Any] = [Text(entry["id"], style="bold")]
    for key, label in _LABELS.items():
        if entry[key]:
            lines.append(indented(f"{label}: {entry[key]}", 2))
        elif key == "counterfactual":
            lines.append(indented("counts on every example", 2))
    write(lines, file)
