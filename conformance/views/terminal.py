"""The report for a person at a terminal, or for a log that a person will read."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

from rich.table import Table
from rich.text import Text

from ..base.texts import printable_record
from . import counterexample, wording
from .complete import complete, notes
from .printing import Fitting, indented, write
from .wording import COLUMNS, count, shown_columns, worst_margin

_STYLES: Final = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold magenta",
    "not-applicable": "dim",
    "untestable": "yellow",
    "expected-failure": "yellow",
    "unexpected-pass": "bold red",
    "conforms": "bold green",
    "conforms-with-deviations": "bold green",
    "conforms-up-to-gauge": "bold green",
    "inconclusive": "bold yellow",
    "fails": "bold red",
}
_LABEL_WIDTH: Final = 11
_EXPLAINED: Final = ("error", "failed", "unexpected-pass")
_GROUPED: Final = {
    "untestable": "untestable",
    "expected-failure": "expected failure",
    "not-applicable": "not applicable",
}
_PROBLEMS: Final = {
    "expired": "expired expectation",
    "different": "not the expected failure",
}
_TOLD: Final = (*_EXPLAINED, "untestable", "expected-failure")

Record = Mapping[str, Any]


def show(report: Record, file: IO[str]) -> None:
    """Write the report; without colour, and lines never broken, where the file is no terminal."""
    write(_parts(printable_record(report)), file)


def render_terminal(report: Record) -> str:
    """The report as plain text, every line whole, whatever terminal there is."""
    file = io.StringIO()
    write(_parts(complete(report)), file, plain=True)
    return file.getvalue()


def _parts(report: Record) -> Iterator[Any]:
    """Details first: what is last stays in sight."""
    candidates = report["candidates"]
    alone = len(candidates) == 1
    if alone:
        yield _clause_table(candidates[0])
    for candidate in candidates:
        yield from _details(candidate, alone=alone)
    if candidates and not alone:
        yield Text("")
        yield _overview(candidates)
    yield from _stale(report["stale_expectations"])
    yield _last_line(report)


def _overview(candidates: Sequence[Record]) -> Fitting:
    """One row a candidate; columns that would be empty are left out."""
    columns = shown_columns(candidates)
    table = Table(box=None, pad_edge=False)
    table.add_column("candidate")
    table.add_column("verdict")
    for name in (*columns, "seconds"):
        table.add_column(name, justify="right")
    table.add_column("worst margin")
    rows: list[Any] = []
    for candidate in candidates:
        table.add_row(
            candidate["name"],
            _styled(candidate["verdict"]),
            *(str(count(candidate, name) or "-") for name in columns),
            f"{candidate['seconds']:.1f}",
            _worst(candidate),
        )
        rows.extend(_overview_lines(candidate))
    return Fitting(table, rows)


def _overview_lines(candidate: Record) -> Iterator[Any]:
    """A row of the overview below its candidate."""
    yield Text(candidate["name"], style="bold")
    counts = [f"{count(candidate, name)} {name}" for name in COLUMNS if count(candidate, name)]
    line = Text.assemble(_styled(candidate["verdict"]), ": ", ", ".join(counts))
    line.append(f", {wording.seconds(candidate['seconds'])}, worst margin {_worst(candidate)}")
    yield indented(line, 2)


def _worst(candidate: Record) -> str:
    """The clause that came nearest to its bound among those that passed."""
    margin, slug = worst_margin(candidate)
    return f"{margin} {slug}".rstrip()


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, "bold magenta"))


def _clause_table(candidate: Record) -> Fitting:
    """Every clause that ran, in the order of the run."""
    table = Table(box=None, pad_edge=False)
    several = _several(candidate)
    for name in ("clause", "level", *(["dtype"] if several else []), "status"):
        table.add_column(name)
    for name in ("examples", "binding", "margin", "seconds"):
        table.add_column(name, justify="right")
    rows: list[Any] = []
    for clause in candidate["clauses"]:
        if clause["status"] == "not-applicable":
            continue
        rows.extend(_clause_lines(clause, several=several))
        table.add_row(
            clause["id"],
            clause["level"],
            *([_where(clause)] if several else []),
            _styled(clause["status"]),
            str(clause["examples"]),
            str(clause["binding"]),
            wording.margin(clause["margin"]) or "-",
            f"{clause['seconds']:.2f}",
        )
    return Fitting(table, rows)


def _clause_lines(clause: Record, *, several: bool) -> Iterator[Any]:
    """A row of the table below its slug."""
    yield Text(clause["id"])
    where = f" {_where(clause)}" if several else ""
    line = Text.assemble(clause["level"], where, " ", _styled(clause["status"]))
    line.append(f", {clause['examples']} examples, {clause['binding']} binding")
    if clause["margin"] is not None:
        line.append(f", margin {wording.margin(clause['margin'])}")
    line.append(f", {clause['seconds']:.2f} s")
    yield indented(line, 2)


def _where(clause: Record) -> str:
    device = clause["device"]
    return str(clause["dtype"] if device == "cpu" else f"{clause['dtype']} {device}")


def _details(candidate: Record, *, alone: bool) -> Iterator[Any]:
    """The verdict and every clause that needs a word; among several a spotless one needs none."""
    told = [clause for clause in candidate["clauses"] if clause["status"] in _TOLD]
    if not alone and not told and candidate["verdict"] == "conforms":
        return
    yield Text("")
    yield Text.assemble(
        (candidate["name"], "bold"),
        f" ({candidate['kind']}, {candidate['target']}): ",
        _styled(candidate["verdict"]),
        f", {candidate['verdict_reason']}",
    )
    for sentence in candidate.get("warnings", ()):
        yield indented(Text(f"warning: {sentence}", style="bold yellow"), 2)
    yield from _assumptions(candidate, first=True)
    if alone and wording.coverage(candidate):
        yield indented(Text(wording.coverage(candidate), style="dim"), 2)
    several = _several(candidate)
    said: dict[str, str] = {}
    for clause in sorted(told, key=lambda clause: _TOLD.index(clause["status"])):
        if clause["status"] in _EXPLAINED:
            full = alone or clause["level"] == "MUST"
            yield from _explained(clause, several=several, full=full, said=said)
    for status, word in _GROUPED.items():
        if alone or status != "not-applicable":
            yield from _grouped(candidate, status, word, several=several)
    yield from _assumptions(candidate, first=False)


def _assumptions(candidate: Record, *, first: bool) -> Iterator[Any]:
    """What was taken for granted: of a graph first, since all that follows rests on it."""
    if first == (candidate["kind"] == "graph"):
        for sentence in candidate["declaration"].get("assumptions", ()):
            yield indented(Text(f"assumed: {sentence}", style="dim"), 2)


def _several(candidate: Record) -> bool:
    """Whether it was judged in several dtypes or on several devices, so that each must be named."""
    return len({(clause["dtype"], clause["device"]) for clause in candidate["clauses"]}) > 1


def _explained(clause: Record, *, several: bool, full: bool, said: dict[str, str]) -> Iterator[Any]:
    """A clause with all that is known about its failure, or (SHOULD, among several) one line."""
    violation = clause.get("violation")
    kind = f", {violation['kind']}" if violation is not None else ""
    where = f" {_where(clause)}" if several else ""
    head = Text.assemble(
        _styled(clause["status"]), " ", (clause["id"], "bold"), f" [{clause['level']}{where}{kind}]"
    )
    if not full:
        head.append(f": {wording.message(clause)}")
    yield indented(head, 2)
    if full:
        yield from explained(clause, said)


def explained(clause: Record, said: dict[str, str] | None = None) -> Iterator[Any]:
    """Why a clause failed, with the tensors of a small counterexample.

    ``said`` holds where a text of blame was told first: the next one only refers to it.
    """
    for label, text in wording.explanation(clause):
        shown = text
        if said is not None and label == "blame":
            first = said.setdefault(text, clause["id"])
            shown = text if first == clause["id"] else f"as in {first}"
        yield indented(f"{label + ':':<{_LABEL_WIDTH}}{shown}", 6)
    for line in counterexample.block(clause.get("counterexample") or {}):
        yield indented(Text(line, overflow="fold"), 8)


def _grouped(candidate: Record, status: str, word: str, *, several: bool) -> Iterator[Any]:
    """The clauses of a status that share a reason, together by that reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for clause in candidate["clauses"]:
        if clause["status"] == status:
            where = _where(clause) if several and status != "not-applicable" else ""
            slugs = groups.setdefault((clause["reason"], where), [])
            if clause["id"] not in slugs:
                slugs.append(clause["id"])
    for (reason, where), slugs in groups.items():
        line = Text(f"{word}{f' in {where}' if where else ''}", style=_STYLES[status])
        line.append(f": {', '.join(slugs)} ({reason})")
        yield indented(line, 2)


def _stale(entries: Iterable[Record]) -> Iterator[Any]:
    for entry in entries:
        problem = _PROBLEMS.get(entry.get("problem", ""), "stale expectation")
        line = Text.assemble("\n", (problem, "bold red"), f" {entry['clause']} of ")
        line.append(f"{entry['candidate']} ({entry['reason']}): {entry['why']}")
        line.append(f"; {entry['change']}" if entry.get("change") else "")
        yield line


def _last_line(report: Record) -> Text:
    candidates = report["candidates"]
    words = [candidate["verdict"] for candidate in candidates]
    counted = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
    many = "1 candidate" if len(candidates) == 1 else f"{len(candidates)} candidates"
    line = Text(f"\n{many}: {', '.join(counted) or 'nothing was checked'}")
    line.append(
        f" (profile {report['profile']}, seed {report['seed']}, "
        f"{wording.seconds(report['seconds'])})"
    )
    for note in notes(report):
        line.append(f"\n{note}", style="yellow")
    if report["interrupted"]:
        line.append("\ninterrupted: the report holds what was done before", style="bold yellow")
    return line
