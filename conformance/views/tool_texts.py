"""What bundle, list, export-check, identify, --write-expected and replay tell a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

from rich.table import Table
from rich.text import Text

from ..base.texts import printable, printable_record
from . import wording
from .printing import Fitting, indented, write
from .terminal import explained

_BUNDLE_WORDS: Final = {
    "fails": "it still fails",
    "differs": "it fails differently today, and that is what the bundle shows",
    "recorded": "as the report holds it",
}


def show_bundle(
    folder: str, clause: Mapping[str, Any], outcome: str, again: str, *, file: IO[str]
) -> None:
    """Write what was bundled, and what its script does."""
    lines = [
        indented(f"{folder}: {clause['id']} in {clause['dtype']}, {_BUNDLE_WORDS[outcome]}", 0),
        indented(printable(str(clause["violation"]["message"])), 2),
    ]
    does = "asks the candidate again" if not again else f"shows the record alone: {again}"
    lines.append(indented(f"python {folder}/show_bundle.py {printable(does)}", 2))
    write(lines, file)


_SENTENCE_WIDTH = 30

_LABELS = {
    "sentence": "requires",
    "level": "level",
    "source": "source",
    "origin": "comes from",
    "applies": "applies",
    "counterfactual": "counts when it can tell apart",
}


def show_list(entries: Sequence[Mapping[str, Any]], file: IO[str]) -> None:
    """One row a clause: slug, level, sentence."""
    table = Table(box=None, pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("level", no_wrap=True)
    table.add_column("requirement")
    rows: list[Any] = []
    for entry in entries:
        table.add_row(entry["id"], entry["level"], entry["sentence"])
        rows.extend([Text(entry["id"]), indented(f"{entry['level']}: {entry['sentence']}", 2)])
    before = sum(max(len(entry[name]) + 2 for entry in entries) for name in ("id", "level"))
    write([Fitting(table, rows, least=before + _SENTENCE_WIDTH)], file)


def show_clause(entry: Mapping[str, Any], file: IO[str]) -> None:
    """Everything there is to know about one clause."""
    lines: list[Any] = [Text(entry["id"], style="bold")]
    for key, label in _LABELS.items():
        if entry[key]:
            lines.append(indented(f"{label}: {entry[key]}", 2))
        elif key == "counterfactual":
            lines.append(indented("counts on every example", 2))
    write(lines, file)


Record = Mapping[str, Any]
_GOOD: Final = ("conforms", "conforms-with-deviations", "conforms-up-to-gauge")
_EXPORT_STYLES: Final = {
    **dict.fromkeys(_GOOD, "bold green"),
    "unsupported": "dim",
    "inconclusive": "bold yellow",
}
# Failed clauses of one export that are told in full, and that are named in the table.
_TOLD: Final = 3
_NAMED: Final = 4


def show_exports(report: Record, file: IO[str], *, kept: bool = False) -> None:
    """Write the report; ``kept`` says that the graphs are still there."""
    write(_export_parts(printable_record(report), kept=kept), file)


def _export_parts(report: Record, *, kept: bool) -> Iterator[Any]:
    """Details first: what is last stays in sight."""
    for rows in _alike(report["exports"]):
        yield from _details(rows, report, kept=kept)
    yield Text.assemble(("\n"), (report["module"]["target"], "bold"), _called(report["module"]))
    yield _export_table(report["exports"])
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
    return Text(word, style=_EXPORT_STYLES.get(word, "bold red"))


def _export_table(rows: list[Record]) -> Fitting:
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


_FACT_STYLES: Final = {"certain": "", "likely": "yellow", "undetermined": "yellow"}
_LEAST: Final = 72
# No line of the table is longer, on a pipe either; longer cells are folded.
_WIDEST: Final = 160
_FOUND: Final = 72
_BETWEEN: Final = 2


def show_identification(record: Record, file: IO[str]) -> None:
    """Write the facts and the declaration."""
    write(_fact_parts(printable_record(record)), file)


def _fact_parts(record: Record) -> Iterator[Any]:
    yield Text.assemble((record["name"], "bold"), f" ({record['form']}, {record['target']})")
    yield from _deviations(record)
    if record["facts"]:
        yield _fact_table(record["facts"])
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


def _fact_table(facts: list[Record]) -> Fitting:
    table = Table(box=None, pad_edge=False)
    table.add_column("fact", no_wrap=True)
    table.add_column("found", max_width=_FOUND)
    names = max(len(fact["fact"]) for fact in facts)
    table.add_column("evidence", style="dim", max_width=_WIDEST - names - _FOUND - 2 * _BETWEEN)
    rows: list[Any] = []
    for fact in facts:
        style = _FACT_STYLES.get(fact["confidence"], "")
        doubt = "" if fact["confidence"] != "likely" else " (likely)"
        table.add_row(fact["fact"], Text(f"{fact['found']}{doubt}", style=style), fact["evidence"])
        rows.append(Text(fact["fact"], style="bold"))
        rows.append(indented(Text(f"{fact['found']}{doubt}", style=style), 2))
        if fact["evidence"]:
            rows.append(indented(Text(fact["evidence"], style="dim"), 4))
    return Fitting(table, rows, least=_LEAST)


def show_renewed(report: Record, file: IO[str]) -> None:
    """Write what was added to the file and dropped from it; nothing where no file was asked for."""
    told = report.get("written_expectations")
    if told is not None:
        write(_renewed_parts(printable_record(told)), file)


def _renewed_parts(told: Record) -> Iterator[Any]:
    if told.get("refused"):
        yield Text(str(told["refused"]), style="bold red")
        return
    counts = f"{len(told['added'])} added, {told['kept']} kept, {len(told['dropped'])} dropped"
    yield Text(f"wrote {told['file']}: {counts}", style="bold")
    for entry in told["added"]:
        yield indented(f"added {_named(entry)}", 2)
    for entry in told["dropped"]:
        yield indented(f"dropped {_named(entry)}: {entry['dropped']}", 2)
    if told["added"]:
        yield Text("say in each new entry why the failure is accepted: its reason is a TODO")


def _named(entry: Record) -> str:
    where = [entry[key] for key in ("dtype", "device") if entry.get(key) not in (None, "*")]
    which = [entry[key] for key in ("kind", "diagnosis") if entry.get(key)]
    return f"{entry['clause']} of {entry['candidate']} ({', '.join([*which, *where])})"


_REPLAY_WORDS: Final = {
    "fails": ("still fails", "bold red"),
    "differs": ("fails differently", "bold red"),
    "passes": ("passes now", "green"),
}

# Candidate, the clause's entry with what was found today, the outcome, and which earlier calls it
# needs.
Entry = tuple[str, Mapping[str, Any], str, str]


def show_replay(entry: Entry, file: IO[str]) -> None:
    """Write what one counterexample gave."""
    write(_replay_parts(entry), file)


def _replay_parts(entry: Entry) -> Iterator[Any]:
    name, clause, outcome, after = entry
    words, style = _REPLAY_WORDS[outcome]
    words += f", but only after {after}" if after else ""
    where = (
        clause["dtype"] if clause["device"] == "cpu" else f"{clause['dtype']} {clause['device']}"
    )
    yield Text.assemble(
        (printable_record(name), "bold"), f" {clause['id']} [{where}]: ", (words, style)
    )
    if outcome != "passes":
        yield from explained(printable_record(dict(clause)))


def show_count(outcomes: Iterable[str], file: IO[str]) -> None:
    """Write how many of them still fail."""
    every = list(outcomes)
    counted = [
        f"{every.count(word)} {_REPLAY_WORDS[word][0]}" for word in _REPLAY_WORDS if word in every
    ]
    many = "1 counterexample" if len(every) == 1 else f"{len(every)} counterexamples"
    write([indented(f"{many}: {', '.join(counted)}", 0)], file)
