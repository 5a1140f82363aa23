"""Tables as plain data, on the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table


@dataclass(frozen=True, kw_only=True)
class Table:
    """A heading, a sentence or two about it, names of columns, and rows of cells."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def on_terminal(self) -> rich.table.Table:
        """The table as rich draws it; the first column is words, the others are figures."""
        table = rich.table.Table(title=self.title, caption=self.note, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        """The table as a section of a Markdown page."""
        ruler = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.columns, ruler, *self.rows)]
        return "\n".join([f"## {self.title}", "", self.note, "", *lines, ""])


def figure(number: float | None) -> str:
    """Three significant digits; a dash where there is nothing to say."""
    return "-" if number is None else f"{number:.3g}"
