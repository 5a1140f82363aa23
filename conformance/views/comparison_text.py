"""Candidates side by side for a person at a terminal, or for a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from rich.table import Table
from rich.text import Text

from . import html_words, wording
from .comparison import Compared, circumstances, compared, conventions, not_asked, sources
from .complete import notes
from .html_words import complete
from .marks import whole
from .printing import Fitting, indented, write

Record = Mapping[str, Any]

_STYLES: Final = {
    "pass": "green",
    "fail": "bold red",
    "error": "bold magenta",
    "unexpected": "bold red",
    "should": "yellow",
    "untestable": "yellow",
    "expected": "yellow",
    "na": "dim",
    "absent": "dim",
}
_LONGEST_VALUE: Final = 40


def show(record: Record, file: IO[str]) -> None:
    """Write what differs, then every candidate's verdict."""
    write(_parts(complete(record)), file)


def _parts(record: Record) -> Iterator[Any]:
    clauses = compared(record)
    different = [clause for clause in clauses if clause.differs]
    if different:
        yield Text("clauses that end differently", style="bold")
        yield _clauses(record, different)
        yield Text("")
    unlike = [row for row in conventions(record) if row.differs]
    if unlike:
        rows = [(row.name, row.values) for row in unlike]
        yield Text("conventions that differ", style="bold")
        yield _table("convention", [one["name"] for one in record["candidates"]], rows)
        yield Text("")
    unequal = circumstances(record)
    if unequal:
        yield Text("the runs were not made alike", style="bold yellow")
        yield _table("run", sources(record), unequal)
        yield Text("")
    yield _verdicts(record)
    yield _last_line(record, clauses)


def _clauses(record: Record, different: list[Compared]) -> Fitting:
    names = [str(one["name"]) for one in record["candidates"]]
    table = Table(box=None, pad_edge=False)
    for name in ("clause", *names):
        table.add_column(name)
    below: list[Any] = []
    for clause in different:
        cells = [_cell(outcome.kind, outcome.word, outcome.margin) for outcome in clause.outcomes]
        table.add_row(clause.slug, *cells)
        below.append(Text(clause.slug, style="bold"))
        pairs = zip(names, cells, strict=True)
        below.extend(indented(Text.assemble(name, ": ", cell), 2) for name, cell in pairs)
    return Fitting(table, below)


def _cell(kind: str, word: str, margin: float | None) -> Text:
    told = f" {html_words.margin(margin)}" if margin is not None and kind != "pass" else ""
    return Text(f"{html_words.sign(kind)} {word}{told}".strip(), style=_STYLES[kind])


def _table(head: str, names: list[str], rows: list[tuple[str, list[str]]]) -> Fitting:
    table = Table(box=None, pad_edge=False)
    for name in (head, *names):
        table.add_column(str(name))
    below: list[Any] = []
    for label, values in rows:
        short = [_short(value) for value in values]
        table.add_row(label, *short)
        below.append(Text(label, style="bold"))
        pairs = zip(names, values, strict=True)
        below.extend(indented(f"{name}: {value}", 2) for name, value in pairs)
    return Fitting(table, below)


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"


def _verdicts(record: Record) -> Fitting:
    table = Table(box=None, pad_edge=False)
    for name in ("candidate", "verdict", "reason"):
        table.add_column(name)
    below: list[Any] = []
    for candidate in record["candidates"]:
        kind, _ = html_words.verdict(str(candidate["verdict"]))
        word = Text(str(candidate["verdict"]), style=_STYLES[kind])
        table.add_row(str(candidate["name"]), word, str(candidate["verdict_reason"]))
        below.append(Text(str(candidate["name"]), style="bold"))
        below.append(indented(Text.assemble(word, ": ", str(candidate["verdict_reason"])), 2))
    return Fitting(table, below)


def _last_line(record: Record, clauses: list[Compared]) -> Text:
    found = whole(record)
    number = len(record["candidates"])
    many = "1 candidate" if number == 1 else f"{number} candidates"
    different = sum(clause.differs for clause in clauses)
    spent = wording.seconds(float(record["seconds"] or 0.0))
    told = f"{different} of {len(clauses)} clauses end differently"
    line = Text(f"\n{many} compared: {found.word}, {told} ({spent})")
    for note in filter(None, (not_asked(clauses), *notes(record))):
        line.append(f"\n{note}", style="yellow")
    return line
