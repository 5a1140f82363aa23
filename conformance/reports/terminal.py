"""The report for a person at a terminal, or for a log that a person will read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

from rich.table import Table
from rich.text import Text

from . import wording
from .printing import indented, write

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
_COUNTED: Final = {
    "passed": "passed",
    "failed": "failed",
    "expected-failure": "expected",
    "unexpected-pass": "unexpected",
    "untestable": "untestable",
    "not-applicable": "n/a",
    "error": "error",
}
_ALWAYS_SHOWN: Final = ("passed", "failed", "expected-failure", "not-applicable")
_LABEL_WIDTH: Final = 11

Record = Mapping[str, Any]


def show(report: Record, file: IO[str]) -> None:
    """Write the report; without colour, and lines never broken, where the file is no terminal."""
    write(_parts(report), file)


def _parts(report: Record) -> Iterator[Any]:
    candidates = report["candidates"]
    if len(candidates) == 1:
        yield _clause_table(candidates[0])
    elif candidates:
        yield _overview(candidates)
    for candidate in candidates:
        yield from _details(candidate, alone=len(candidates) == 1)
    yield from _stale(report["stale_expectations"])
    yield _last_line(report)


def _overview(candidates: Iterable[Record]) -> Table:
    candidates = list(candidates)
    table = Table(box=None, pad_edge=False)
    statuses = [
        status
        for status in _COUNTED
        if status in _ALWAYS_SHOWN or any(_count(candidate, status) for candidate in candidates)
    ]
    table.add_column("candidate", overflow="fold")
    table.add_column("verdict")
    for status in statuses:
        table.add_column(_COUNTED[status], justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("worst margin", overflow="fold")
    for candidate in candidates:
        table.add_row(
            candidate["name"],
            _styled(candidate["verdict"]),
            *(str(_count(candidate, status) or "-") for status in statuses),
            f"{candidate['seconds']:.1f}",
            _worst(candidate),
        )
    return table


def _count(candidate: Record, status: str) -> int:
    return sum(clause["status"] == status for clause in candidate["clauses"])


def _worst(candidate: Record) -> str:
    """The clause that came nearest to its bound among those that passed."""
    passed = [
        clause
        for clause in candidate["clauses"]
        if clause["margin"] is not None and clause["status"] == "passed"
    ]
    if not passed:
        return "-"
    worst = max(passed, key=lambda clause: float(clause["margin"]))
    return f"{wording.margin(worst['margin'])} {worst['id']}"


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, "bold magenta"))


def _clause_table(candidate: Record) -> Table:
    """Every clause that ran, in the order of the run."""
    table = Table(box=None, pad_edge=False)
    several = len({(clause["dtype"], clause["device"]) for clause in candidate["clauses"]}) > 1
    for name in ("clause", "level", *(["dtype"] if several else []), "status"):
        table.add_column(name)
    for name in ("examples", "binding", "margin", "seconds"):
        table.add_column(name, justify="right")
    for clause in candidate["clauses"]:
        if clause["status"] == "not-applicable":
            continue
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
    return table


def _where(clause: Record) -> str:
    device = clause["device"]
    return str(clause["dtype"] if device == "cpu" else f"{clause['dtype']} {device}")


def _details(candidate: Record, *, alone: bool) -> Iterator[Any]:
    """The verdict and every clause that needs a word: only that of a conforming one is short."""
    told = [clause for clause in candidate["clauses"] if clause["status"] in _TOLD]
    quiet = not told and not _count(candidate, "untestable")
    if not alone and quiet and candidate["verdict"] == "conforms":
        return
    yield Text("")
    yield Text.assemble(
        (candidate["name"], "bold"),
        f" ({candidate['kind']}, {candidate['target']}): ",
        _styled(candidate["verdict"]),
        f", {candidate['verdict_reason']}",
    )
    several = len({(clause["dtype"], clause["device"]) for clause in candidate["clauses"]}) > 1
    for status in _TOLD:
        for clause in told:
            if clause["status"] == status:
                yield from _TOLD[status](clause, several=several)
    yield from _grouped(candidate, "untestable", "untestable", "yellow")
    if alone:
        yield from _grouped(candidate, "not-applicable", "not applicable", "dim")
    yield from _assumptions(candidate)


def _head(clause: Record, *, several: bool) -> Text:
    violation = clause.get("violation")
    kind = f", {violation['kind']}" if violation is not None else ""
    where = f" {_where(clause)}" if several else ""
    return Text.assemble(
        "  ",
        _styled(clause["status"]),
        " ",
        (clause["id"], "bold"),
        f" [{clause['level']}{where}{kind}]",
    )


def _explained(clause: Record, *, several: bool) -> Iterator[Any]:
    yield _head(clause, several=several)
    for label, text in wording.explanation(clause):
        yield indented(f"{label + ':':<{_LABEL_WIDTH}}{text}", 6)


def _reasoned(clause: Record, *, several: bool) -> Iterator[Any]:
    line = _head(clause, several=several)
    line.append(f": {clause['reason']}")
    yield line


_TOLD: Final = {
    "error": _explained,
    "failed": _explained,
    "unexpected-pass": _reasoned,
    "expected-failure": _reasoned,
}


def _grouped(candidate: Record, status: str, word: str, style: str) -> Iterator[Any]:
    """The clauses of a status that many share for the same reason, together by that reason."""
    by_reason: dict[str, list[str]] = {}
    for clause in candidate["clauses"]:
        if clause["status"] == status:
            slugs = by_reason.setdefault(clause["reason"], [])
            if clause["id"] not in slugs:
                slugs.append(clause["id"])
    for reason, slugs in by_reason.items():
        yield indented(Text(f"{word}: {', '.join(slugs)} ({reason})", style=style), 2)


def _assumptions(candidate: Record) -> Iterator[Any]:
    for sentence in candidate["declaration"].get("assumptions", ()):
        yield Text(f"  assumed: {sentence}", style="dim")


def _stale(entries: Iterable[Record]) -> Iterator[Any]:
    for entry in entries:
        yield Text.assemble(
            "\n",
            ("stale expectation", "bold red"),
            f" {entry['clause']} of {entry['candidate']} ({entry['reason']}): {entry['why']}",
        )


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
    if report["interrupted"]:
        line.append("\ninterrupted: the report holds what was done before", style="bold yellow")
    return line
