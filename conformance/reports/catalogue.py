"""The clauses for a person: a table of all, a page for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .terminal import console_for

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
    console = console_for(file)
    console.print(table, soft_wrap=not console.is_terminal)


def show_clause(entry: Mapping[str, Any], file: IO[str]) -> None:
    """Everything there is to know about one clause."""
    console = console_for(file)
    console.print(Text(entry["id"], style="bold"))
    for key, label in _LABELS.items():
        text = entry[key] or ("any answer" if key == "counterfactual" else "")
        if key == "counterfactual" and not entry[key]:
            label, text = "counts", "on every example"  # noqa: PLW2901
        line = Text(f"{label}: {text}")
        console.print(Padding(line, (0, 0, 0, 2)), soft_wrap=not console.is_terminal)
