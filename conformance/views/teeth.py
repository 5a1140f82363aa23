"""The matrix for a person at a terminal, or for a log that a person will read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..base.printable import printable_record
from .printing import Fitting, indented, write
from .teeth_matrix import CAUGHT, PRIMARY, SLIPPED, blocks, families, legend, summary_lines

Record = Mapping[str, Any]


def show_teeth(record: Record, file: IO[str]) -> None:
    """Write the matrix, the clauses with what they catch, and the verdict last."""
    write(_parts(printable_record(record)), file)


def _parts(record: Record) -> Iterator[Any]:
    if not record["first"] and record["mistakes"]:
        yield _Matrix(record)
        yield Text(legend(), style="dim")
        yield Text("")
    if record["clauses"]:
        yield _clauses(record)
        yield Text("")
    lines = list(summary_lines(record))
    for good, sentence in lines[:-1]:
        yield Text(sentence, style="" if good else "red")
    good, sentence = lines[-1]
    yield Text(sentence, style="bold green" if good else "bold red")


class _Matrix:
    """The cells, in as many blocks as the width of the terminal asks for."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich prints for it."""
        del console
        styles = {PRIMARY: "green", CAUGHT: "green", SLIPPED: "bold red", "!": "bold magenta"}
        names = {row["name"]: row for row in self.record["mistakes"]}
        for lines in blocks(self.record, options.max_width):
            for line in lines:
                text = Text(line, no_wrap=True)
                name, _, cells = line.partition(" ")
                for place, sign in enumerate(cells, len(name) + 1) if name in names else ():
                    if sign in styles:
                        text.stylize(styles[sign], place, place + 1)
                yield text
            yield Text("")


def _clauses(record: Record) -> Fitting:
    """One row a clause: its number in the matrix, and how many mistakes it catches."""
    table = Table(box=None, pad_edge=False)
    table.add_column("no.", justify="right")
    table.add_column("clause")
    table.add_column("level")
    table.add_column("catches", justify="right")
    table.add_column("primary of", justify="right")
    by_slug = {clause["id"]: clause for clause in record["clauses"]}
    rows: list[Any] = []
    for family in families(record):
        for number, slug in zip(family.numbers, family.slugs, strict=True):
            clause = by_slug[slug]
            caught, primary = len(clause["caught"]), len(clause["primary_of"])
            style = "" if caught else "red"
            counts = (str(caught or "-"), str(primary or "-"))
            table.add_row(str(number), slug, clause["level"], *counts, style=style)
            told = f"{clause['level']}, catches {caught}, primary of {primary}"
            rows.extend([Text(f"{number} {slug}", style=style), indented(told, 2)])
    return Fitting(table, rows)
