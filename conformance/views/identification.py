"""What was identified, for a person: a table of facts, then the declaration to paste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

from rich.table import Table
from rich.text import Text

from ..base.printable import printable_record
from .printing import Fitting, indented, write

Record = Mapping[str, Any]
_STYLES: Final = {"certain": "", "likely": "yellow", "undetermined": "yellow"}
_LEAST: Final = 72
# No line of the table is longer, on a pipe either; longer cells are folded.
_WIDEST: Final = 160
_FOUND: Final = 72
_BETWEEN: Final = 2


def show(record: Record, file: IO[str]) -> None:
    """Write the facts and the declaration."""
    write(_parts(printable_record(record)), file)


def _parts(record: Record) -> Iterator[Any]:
    yield Text.assemble((record["name"], "bold"), f" ({record['form']}, {record['target']})")
    yield from _deviations(record)
    if record["facts"]:
        yield _table(record["facts"])
    for sentence in record.get("contradictions") or ():
        yield Text(f"\nthe declaration contradicts this: {sentence}", style="bold yellow")
    for sentence in record.get("beyond") or ():
        yield Text(f"\nno declaration is written: {sentence}", style="yellow")
    if not record["identified"]:
        yield Text(f"nothing could be identified: {record['reason']}", style="bold red")
    for number, line in enumerate((record.get("check") or {}).get("told") or ()):
        yield Text(line if number else f"\n{line}", style="bold" if number == 0 else "")
    if record["declaration"]:
        yield Text("\nA declaration to paste:\n", style="bold")
        yield from _code(record["declaration"])


def _deviations(record: Record) -> Iterator[Text]:
    """What differs from the standard, the probable mistakes first."""
    found: Sequence[Record] = record.get("deviations") or ()
    mistaken = [one for one in found if one.get("mistaken")]
    chosen = [one for one in found if not one.get("mistaken")]
    if mistaken:
        yield Text(f"\n{record['mistaken']}:", style="bold red")
        for one in mistaken:
            yield Text(f"  {one['text']} ({one['observed']})")
            yield Text(f"    fix: {one['fix']}")
        yield Text("")
    if chosen:
        yield Text("deviations from the standard that are choices of a convention, or mistakes:")
        for one in chosen:
            fix = f"; if that is not meant: {one['fix']}" if one["fix"] else ""
            yield Text(f"  {one['text']} ({one['observed']}){fix}")
        yield Text("")


def _code(text: str) -> Iterator[Text]:
    """Lines as they are: no wrapping, so that they can be copied."""
    for line in text.rstrip("\n").split("\n"):
        yield Text(line, no_wrap=True, overflow="ignore")


def _table(facts: list[Record]) -> Fitting:
    table = Table(box=None, pad_edge=False)
    table.add_column("fact", no_wrap=True)
    table.add_column("found", max_width=_FOUND)
    names = max(len(fact["fact"]) for fact in facts)
    table.add_column("evidence", style="dim", max_width=_WIDEST - names - _FOUND - 2 * _BETWEEN)
    rows: list[Any] = []
    for fact in facts:
        style = _STYLES.get(fact["confidence"], "")
        doubt = "" if fact["confidence"] != "likely" else " (likely)"
        table.add_row(fact["fact"], Text(f"{fact['found']}{doubt}", style=style), fact["evidence"])
        rows.append(Text(fact["fact"], style="bold"))
        rows.append(indented(Text(f"{fact['found']}{doubt}", style=style), 2))
        if fact["evidence"]:
            rows.append(indented(Text(fact["evidence"], style="dim"), 4))
    return Fitting(table, rows, least=_LEAST)
