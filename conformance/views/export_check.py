"""The exports of a module for a person: what failed in each, then a table of them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from rich.table import Table
from rich.text import Text

from ..base.printable import printable_record
from . import wording
from .printing import Fitting, indented, write

Record = Mapping[str, Any]
_GOOD: Final = ("conforms", "conforms-with-deviations", "conforms-up-to-gauge")
_STYLES: Final = {
    **dict.fromkeys(_GOOD, "bold green"),
    "unsupported": "dim",
    "inconclusive": "bold yellow",
}
# Failed clauses of one export that are told in full, and that are named in the table.
_TOLD: Final = 3
_NAMED: Final = 4


def show(report: Record, file: IO[str], *, kept: bool = False) -> None:
    """Write the report; ``kept`` says that the graphs are still there."""
    write(_parts(printable_record(report), kept=kept), file)


def _parts(report: Record, *, kept: bool) -> Iterator[Any]:
    """Details first: what is last stays in sight."""
    for rows in _alike(report["exports"]):
        yield from _details(rows, report, kept=kept)
    yield Text.assemble(("\n"), (report["module"]["target"], "bold"), _called(report["module"]))
    yield _table(report["exports"])
    yield _last_line(report)


def _called(module: Record) -> str:
    shapes = [f"{name} {told['shape']}" for name, told in module["inputs"].items()]
    return f" exported with {', '.join(shapes)}"


def _alike(rows: list[Record]) -> list[list[Record]]:
    """Exports that fail in the same way, together."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        step = (row["blame"] or {}).get("step", "")
        key = (row["exporter"], row["verdict"], row["reason"], *row["failed"], step)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _details(rows: list[Record], report: Record, *, kept: bool) -> Iterator[Any]:
    """Why exports are not right; what is needs no word."""
    row = rows[0]
    if row["verdict"] in _GOOD or row["verdict"] == "unsupported":
        return
    yield Text.assemble(
        ("\n"), (_names(rows), "bold"), ": ", _styled(row["verdict"]), f", {row['reason']}"
    )
    mine = [entry for entry in report["candidates"] if entry["target"] == row["path"]]
    clauses = [
        clause for entry in mine for clause in entry["clauses"] if clause["id"] in row["failed"]
    ]
    for clause in clauses[:_TOLD]:
        yield indented(Text.assemble((clause["id"], "bold")), 2)
        for label, text in wording.explanation(clause):
            yield indented(f"{label + ':':<11}{text}", 4)
    if len(clauses) > _TOLD:
        yield indented(f"and {len(clauses) - _TOLD} more failed clauses", 2)
    if kept and mine:
        source = f"{report['module']['source']}:module"
        yield indented(f"again: conformance check {row['path']} --source {source}", 2)


def _name(row: Record) -> str:
    return f"{row['exporter']} at opset {row['opset']}"


def _names(rows: list[Record]) -> str:
    return f"{rows[0]['exporter']} at opset {', '.join(str(row['opset']) for row in rows)}"


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, "bold red"))


def _table(rows: list[Record]) -> Fitting:
    table = Table(box=None, pad_edge=False)
    for name in ("exporter", "opset", "verdict", "failed", "to blame"):
        table.add_column(name, justify="right" if name == "opset" else "left")
    below: list[Any] = []
    for row in rows:
        failed, blamed = _failed(row), _blamed(row)
        table.add_row(row["exporter"], str(row["opset"]), _styled(row["verdict"]), failed, blamed)
        below.append(Text(_name(row), style="bold"))
        line = Text.assemble(_styled(row["verdict"]), f": {failed}" if failed else "")
        below.append(indented(line.append(f", {blamed} to blame" if blamed else ""), 2))
    return Fitting(table, below)


def _failed(row: Record) -> str:
    """The failed clauses, or what else is to be said."""
    slugs = row["failed"]
    more = f" and {len(slugs) - _NAMED} more" if len(slugs) > _NAMED else ""
    should = "SHOULD: " if slugs and row["verdict"] in _GOOD else ""
    named = should + ", ".join(slugs[:_NAMED]) + more
    return ", ".join(filter(None, (named, row.get("note", ""))))


def _blamed(row: Record) -> str:
    blame = row["blame"]
    if not blame:
        return ""
    return f"{blame['step']} ({blame['stage']})" if blame["stage"] else str(blame["step"])


def _last_line(report: Record) -> Text:
    words = [row["verdict"] for row in report["exports"]]
    counted = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
    line = Text(f"\n{len(words)} exports: {', '.join(counted)}")
    line.append(
        f" (profile {report['profile']}, seed {report['seed']}, "
        f"{wording.seconds(report['seconds'])})"
    )
    if report["interrupted"]:
        line.append("\ninterrupted: the report holds what was done before", style="bold yellow")
    return line
