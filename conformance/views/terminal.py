"""The report for a person at a terminal, or for a log a person will read.

Failures come at a glance (:mod:`conformance.views.summary`), details on demand.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final

from rich.text import Text

from ..base.line_breaking import broken_into_lines
from ..base.printable_text import few, printable_record
from . import counterexample, wording
from .complete import Record, complete, notes
from .printing import Fitting, columns_of, fitting, indented, numeric, write
from .summary import VERDICT_STYLES, WIDTH, summary
from .verdict_marks import is_strict
from .wording import COLUMNS, count, counted, shown_columns, where, worst_margin

_STYLES: Final = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold magenta",
    "not-applicable": "dim",
    "untestable": "yellow",
    "expected-failure": "yellow",
    "unexpected-pass": "bold red",
    **VERDICT_STYLES,
}
_LABEL_WIDTH: Final = 11
_MOST_WARNINGS: Final = 5  # of candidates that have no text of their own
_EXPLAINED: Final = ("error", "failed", "unexpected-pass")
_GROUPED: Final = {
    "untestable": "untestable",
    "expected-failure": "expected failure",
    "not-applicable": "not applicable",
}
_LISTED: Final = (*_EXPLAINED, "untestable", "expected-failure")


# The detail shown: the verdict with its causes, the clauses as well, or each failure in full.
SUMMARY: Final = 0
TABLE: Final = 1
EVERYTHING: Final = 2


def show(report: Record, file: IO[str], verbosity: int = SUMMARY) -> None:
    """Write the report, without colour where the file is no terminal.

    The lines of a summary are broken; those of tables and details are not, but on a terminal.
    """
    width = columns_of(file)
    write(_parts(printable_record(report), verbosity, width), file)


def render_terminal(report: Record, verbosity: int = SUMMARY) -> str:
    """What a terminal shows of a report, as plain text."""
    file = io.StringIO()
    write(_parts(complete(report), verbosity), file, plain=True)
    return file.getvalue()


def _parts(report: Record, verbosity: int, width: int = WIDTH) -> Iterator[Any]:
    """Yield the parts, from the first line that is not empty."""
    every = _parts_of_report(report, verbosity, width)
    return itertools.dropwhile(lambda part: isinstance(part, Text) and not part, every)


def _parts_of_report(report: Record, verbosity: int, width: int) -> Iterator[Any]:
    """Yield details first, since the end stays in sight."""
    candidates = report["candidates"]
    alone = len(candidates) == 1
    in_full = verbosity >= (EVERYTHING if alone else TABLE)
    advised = is_strict(report) or verbosity >= TABLE
    if alone and verbosity >= TABLE:
        yield _clause_table(candidates[0])
    for candidate in wording.sort_by_urgency(candidates):
        if in_full:
            yield from _details(candidate, alone=alone)
        if (
            candidate.get("causes")
            if in_full
            else alone or _needs_words(candidate, advised=advised)
        ):
            yield Text("")
            yield from summary(candidate, width, alone=alone, advised=advised)
    if candidates and not alone:
        yield Text("")
        yield _overview(candidates)
        untold = [one for one in candidates if not _needs_words(one, advised=advised)]
        yield from _sites(untold)
        yield from _warned(untold, width)
    yield from _stale(report["stale_expectations"])
    words = [candidate["verdict"] for candidate in candidates]
    line = f"{counted(len(words), 'candidate')}: {verdict_counts(words) or 'nothing was checked'}"
    said = notes(report)
    if verbosity == SUMMARY:
        said = ["\n".join(broken_into_lines(note, width)) for note in said]
    yield last_line(report, line, said)


def _sites(candidates: Sequence[Record]) -> Iterator[Any]:
    """Yield the sites of attentions without a text below the table."""
    for candidate in candidates:
        if site := wording.site(candidate):
            yield indented(Text(f"{candidate['name']}: {site}"), 0)


def _warned(candidates: Sequence[Record], width: int) -> Iterator[Any]:
    """Yield the warnings on candidates without a text below the table, once each."""
    names: dict[str, list[str]] = {}
    for candidate in candidates:
        for sentence in candidate.get("warnings", ()):
            names.setdefault(str(sentence), []).append(str(candidate["name"]))
    for sentence, warned in list(names.items())[:_MOST_WARNINGS]:
        lines = broken_into_lines(f"warning: {few(warned)}: {sentence}", width)
        yield Text("\n".join(lines), style="bold yellow")
    if len(names) > _MOST_WARNINGS:
        yield Text(f"and {counted(len(names) - _MOST_WARNINGS, 'more warning')}: see --json")


def verdict_counts(words: Sequence[str]) -> str:
    """``2 conforms, 1 fails``."""
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def last_line(report: Record, text: str, notes: Iterable[str] = ()) -> Text:
    """A summary with the profile, the seed and the duration of the run, and with notes on it."""
    line = Text(
        f"\n{text} (profile {report['profile']}, seed {report['seed']}, "
        f"{wording.seconds(report['seconds'])})"
    )
    for note in notes:
        line.append(f"\n{note}", style="yellow")
    if report["interrupted"]:
        line.append("\ninterrupted: the rest was not done", style="bold yellow")
    return line


def _overview(candidates: Sequence[Record]) -> Fitting:
    columns = shown_columns(candidates)
    rows = []
    for candidate in candidates:
        name, verdict = candidate["name"], _styled(candidate["verdict"])
        worst, slug = worst_margin(candidate)
        numbers = [str(count(candidate, column) or "-") for column in columns]
        cells = [name, verdict, *numbers, f"{candidate['seconds']:.1f}", worst]
        counts = [
            f"{number} {column}" for column in COLUMNS if (number := count(candidate, column))
        ]
        said = [*counts, wording.seconds(candidate["seconds"])]
        said += [f"worst margin {worst} {slug}"] * bool(slug)
        line = Text.assemble(_styled(candidate["verdict"]), ": ", ", ".join(said))
        rows.append((cells, [Text(name, style="bold"), indented(line, 2)]))
    heads = ["candidate", "verdict", *numeric(*columns, "seconds", "worst margin")]
    return fitting(heads, rows)


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, "bold magenta"))


def _clause_table(candidate: Record) -> Fitting:
    several = _several(candidate)
    rows = []
    for clause in candidate["clauses"]:
        if clause["status"] == "not-applicable":
            continue
        dtype = [where(clause)] if several else []
        margin, seconds = wording.margin(clause["margin"]), f"{clause['seconds']:.2f}"
        numbers = [str(clause["examples"]), str(clause["binding"]), margin or "-", seconds]
        cells = [clause["id"], clause["level"], *dtype, _status(clause), *numbers]
        line = Text.assemble(" ".join([clause["level"], *dtype]), " ", _status(clause))
        line.append(f", {clause['examples']} examples, {clause['binding']} binding")
        line.append(f", margin {margin}" if margin else "")
        line.append(f", {seconds} s")
        rows.append((cells, [Text(clause["id"]), indented(line, 2)]))
    heads = ["clause", "level", *(["dtype"] if several else []), "status"]
    return fitting([*heads, *numeric("examples", "binding", "margin", "seconds")], rows)


def _details(candidate: Record, *, alone: bool) -> Iterator[Any]:
    """Yield the verdict and the clauses to explain; nothing for a spotless one of several."""
    listed = [clause for clause in candidate["clauses"] if clause["status"] in _LISTED]
    if not alone and not _needs_words(candidate, advised=True):
        return
    yield Text("")
    yield Text.assemble(
        (candidate["name"], "bold"),
        f" ({candidate['kind']}, {candidate['target']}): ",
        _styled(candidate["verdict"]),
        f", {candidate['verdict_reason']}",
    )
    if wording.site(candidate):
        yield indented(Text(f"site: {wording.site(candidate)}"), 2)
    for sentence in candidate.get("warnings", ()):
        yield indented(Text(f"warning: {sentence}", style="bold yellow"), 2)
    assumptions = [
        indented(Text(f"assumed: {sentence}", style="dim"), 2)
        for sentence in candidate["declaration"].get("assumptions", ())
    ]
    # Assumptions on a graph come first, since everything else rests on them.
    yield from assumptions if candidate["kind"] == "graph" else ()
    if alone and wording.coverage(candidate):
        yield indented(Text(wording.coverage(candidate), style="dim"), 2)
    several = _several(candidate)
    blames: dict[str, str] = {}
    for clause in sorted(listed, key=lambda clause: _LISTED.index(clause["status"])):
        if clause["status"] in _EXPLAINED:
            full = alone or clause["level"] == "MUST"
            yield from _explained(clause, several=several, full=full, blames=blames)
    for status, word in _GROUPED.items():
        if alone or status != "not-applicable":
            yield from _grouped(candidate, status, word, several=several)
    yield from assumptions if candidate["kind"] != "graph" else ()


def _needs_words(candidate: Record, *, advised: bool) -> bool:
    """Tell whether a candidate among several needs more than a row of a table.

    Unfollowed recommendations are counted in the row, unless ``advised``.
    """
    listed = any(
        clause["status"] in _LISTED and (advised or not _is_tolerated(clause))
        for clause in candidate["clauses"]
    )
    return listed or candidate["verdict"] != "conforms"


def _is_tolerated(clause: Record) -> bool:
    return bool(clause["status"] == "failed" and clause["level"] != "MUST")


def _status(clause: Record) -> Text:
    """Return the status of a clause, in red only if a verdict depends on it."""
    style = "yellow" if _is_tolerated(clause) else _STYLES.get(clause["status"], "bold magenta")
    return Text(clause["status"], style=style)


def _several(candidate: Record) -> bool:
    """Tell whether results of several dtypes or devices must be distinguished."""
    return len({(clause["dtype"], clause["device"]) for clause in candidate["clauses"]}) > 1


def _explained(
    clause: Record, *, several: bool, full: bool, blames: dict[str, str]
) -> Iterator[Any]:
    """Yield a failure in full, or (SHOULD, among several candidates) in one line."""
    violation = clause.get("violation")
    kind = f", {violation['kind']}" if violation is not None else ""
    dtype = f" {where(clause)}" if several else ""
    head = Text.assemble(
        _status(clause), " ", (clause["id"], "bold"), f" [{clause['level']}{dtype}{kind}]"
    )
    if not full:
        head.append(f": {wording.message(clause)}")
    yield indented(head, 2)
    if full:
        yield from explained(clause, blames)


def explained(clause: Record, blames: dict[str, str] | None = None) -> Iterator[Any]:
    """Explain why a clause failed, with the tensors of a small counterexample.

    ``blames`` maps texts of blame to the clause showing them first: later clauses refer to this
    clause.
    """
    for label, text in wording.explanation(clause):
        shown = text
        if blames is not None and label == "blame":
            first = blames.setdefault(text, clause["id"])
            shown = text if first == clause["id"] else f"as in {first}"
        yield indented(f"{label + ':':<{_LABEL_WIDTH}}{shown}", 6)
    for line in counterexample.block(clause.get("counterexample") or {}):
        yield indented(Text(line, overflow="fold"), 8)


def _grouped(candidate: Record, status: str, word: str, *, several: bool) -> Iterator[Any]:
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for clause in candidate["clauses"]:
        if clause["status"] == status:
            dtype = where(clause) if several and status != "not-applicable" else ""
            groups.setdefault((clause["reason"], dtype), {})[clause["id"]] = None
    for (reason, dtype), slugs in groups.items():
        line = Text(f"{word}{f' in {dtype}' if dtype else ''}", style=_STYLES[status])
        line.append(f": {', '.join(slugs)} ({reason})")
        yield indented(line, 2)


def _stale(entries: Iterable[Record]) -> Iterator[Any]:
    for entry in entries:
        problem, text = wording.expectation(entry)
        yield Text.assemble("\n", (problem, "bold red"), f" {text}")
