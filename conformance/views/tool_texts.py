"""What bundle, list, export-check, identify, --write-expected and replay print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

from rich.table import Column
from rich.text import Text

from ..base.printable_text import few, printable, printable_record
from ..base.record import GREEN
from . import wording
from .complete import Record
from .printing import Fitting, fitting, indented, numeric, write
from .terminal import explained, last_line, verdict_counts

_BUNDLE_WORDS: Final = {
    "fails": "it still fails",
    "differs": "it fails differently today, and that is what the bundle shows",
    "recorded": "as the report holds it",
}


def show_bundle(folder: str, clause: Record, outcome: str, again: str, *, file: IO[str]) -> None:
    """Write the content of the bundle, and the purpose of its script."""
    does = "calls the candidate again" if not again else f"shows the record alone: {again}"
    lines = [
        indented(f"{folder}: {clause['id']} in {clause['dtype']}, {_BUNDLE_WORDS[outcome]}", 0),
        indented(printable(str(clause["violation"]["message"])), 2),
        indented(f"python {folder}/show.py {printable(does)}", 2),
    ]
    write(lines, file)


_SENTENCE_WIDTH: Final = 30
_LABELS: Final = {
    "sentence": "requires",
    "level": "level",
    "source": "source",
    "origin": "comes from",
    "applies": "applies",
    "counterfactual": "counts when it can tell apart",
}


def show_list(entries: Sequence[Record], file: IO[str]) -> None:
    """Write one row for each clause: slug, level, sentence."""
    rows = []
    for entry in entries:
        slug, level, sentence = entry["id"], entry["level"], entry["sentence"]
        rows.append(((slug, level, sentence), [Text(slug), indented(f"{level}: {sentence}", 2)]))
    before = sum(max(len(entry[name]) + 2 for entry in entries) for name in ("id", "level"))
    heads: list[Column | str] = [
        Column("clause", no_wrap=True),
        Column("level", no_wrap=True),
        "requirement",
    ]
    write([fitting(heads, rows, least=before + _SENTENCE_WIDTH)], file)


def show_explained(entries: Sequence[Record], file: IO[str]) -> None:
    """All that is documented about a clause or a mistake; of several clauses a table."""
    several = len(entries) > 1 and all("id" in entry for entry in entries)
    if several and len({entry["family"] for entry in entries}) == 1:
        show_list(entries, file)
        return
    lines: list[Any] = []
    for entry in entries:
        lines += [Text("")] * bool(lines)
        lines += _clause_lines(entry) if "id" in entry else _mistake_lines(entry)
    write(lines, file)


def _clause_lines(entry: Record) -> Iterator[Any]:
    yield Text(entry["id"], style="bold")
    for key, label in _LABELS.items():
        if entry[key]:
            yield indented(f"{label}: {entry[key]}", 2)
        elif key == "counterfactual":
            yield indented("counts on every example", 2)
    if entry["catches"]:
        yield indented(f"catches first: {', '.join(entry['catches'])}", 2)


def _mistake_lines(entry: Record) -> Iterator[Any]:
    yield Text(entry["mistake"], style="bold")
    labels = {"sentence": "wrong is", "fix": "to mend it", "primary": "caught first by"}
    for key, label in labels.items():
        if entry[key]:
            yield indented(f"{label}: {entry[key]}", 2)


_EXPORT_STYLES: Final = {
    **dict.fromkeys(GREEN, "bold green"),
    "unsupported": "dim",
    "inconclusive": "bold yellow",
}
# Failed clauses of an export to explain, and to name in the table.
_EXPLAINED: Final = 3
_NAMED: Final = 4


def show_exports(report: Record, file: IO[str], *, kept: bool = False) -> None:
    """Write the report; ``kept``: the graphs still exist."""
    write(_export_parts(printable_record(report), kept=kept), file)


def _export_parts(report: Record, *, kept: bool) -> Iterator[Any]:
    """Yield details first, since the end stays in sight; equal failures share them."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in report["exports"]:
        step = (row["blame"] or {}).get("step", "")
        key = (row["exporter"], row["verdict"], row["reason"], *row["failed"], step)
        groups.setdefault(key, []).append(row)
    for rows in groups.values():
        yield from _export_details(rows, report, kept=kept)
    module = report["module"]
    shapes = ", ".join(f"{name} {data['shape']}" for name, data in module["inputs"].items())
    yield Text.assemble("\n", (module["target"], "bold"), f" exported with {shapes}")
    yield _export_table(report["exports"])
    words = [row["verdict"] for row in report["exports"]]
    yield last_line(report, f"{wording.counted(len(words), 'export')}: {verdict_counts(words)}")


def _export_details(rows: list[Record], report: Record, *, kept: bool) -> Iterator[Any]:
    """Yield why exports are not right; nothing for a right export."""
    row = rows[0]
    if row["verdict"] in GREEN or row["verdict"] == "unsupported":
        return
    opsets = ", ".join(str(row["opset"]) for row in rows)
    names = f"{row['exporter']} at opset {opsets}"
    verdict = _export_verdict(row)
    yield Text.assemble("\n", (names, "bold"), ": ", verdict, f", {row['reason']}")
    checked = [entry for entry in report["candidates"] if entry["target"] == row["path"]]
    clauses = [
        clause for entry in checked for clause in entry["clauses"] if clause["id"] in row["failed"]
    ]
    for clause in clauses[:_EXPLAINED]:
        yield indented(Text(clause["id"], style="bold"), 2)
        for label, text in wording.explanation(clause):
            yield indented(f"{label + ':':<11}{text}", 4)
    if len(clauses) > _EXPLAINED:
        yield indented(f"and {len(clauses) - _EXPLAINED} more failed clauses", 2)
    if kept and checked:
        source = f"{report['module']['source']}:module"
        yield indented(f"again: conformance check {row['path']} --source {source}", 2)


def _export_verdict(row: Record) -> Text:
    return Text(row["verdict"], style=_EXPORT_STYLES.get(row["verdict"], "bold red"))


def _export_table(exports: Sequence[Record]) -> Fitting:
    rows = []
    for row in exports:
        slugs, exporter, opset = row["failed"], row["exporter"], str(row["opset"])
        should = "SHOULD: " if slugs and row["verdict"] in GREEN else ""
        named = should + few(slugs, _NAMED)
        failed = ", ".join(filter(None, (named, row.get("note", ""))))
        blame = row["blame"] or {"step": "", "stage": ""}
        blamed = str(blame["step"]) + (f" ({blame['stage']})" if blame["stage"] else "")
        line = Text.assemble(_export_verdict(row), f": {failed}" if failed else "")
        line.append(f", {blamed} to blame" if blamed else "")
        below = [Text(f"{exporter} at opset {opset}", style="bold"), indented(line, 2)]
        rows.append(((exporter, opset, _export_verdict(row), failed, blamed), below))
    return fitting(["exporter", *numeric("opset"), "verdict", "failed", "to blame"], rows)


_DOUBTFUL: Final = ("likely", "undetermined")
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
    yield from _sites(record)
    for sentence in record.get("contradictions") or ():
        yield Text(f"\nthe declaration contradicts this: {sentence}", style="bold yellow")
    for sentence in record.get("beyond") or ():
        yield Text(f"\nno declaration is written: {sentence}", style="yellow")
    if not record["identified"]:
        yield Text(f"nothing could be identified: {record['reason']}", style="bold red")
    if record.get("nearest"):
        yield Text(f"nearest to it that can be declared: {record['nearest']['words']}")
    for number, line in enumerate((record.get("check") or {}).get("told") or ()):
        yield Text(line if number else f"\n{line}", style="bold" if number == 0 else "")
    if record["declaration"]:
        yield Text("\nA declaration to paste:\n", style="bold")
        # Not wrapped, so that the lines can be copied.
        for line in record["declaration"].rstrip("\n").split("\n"):
            yield Text(line, no_wrap=True, overflow="ignore")


def _sites(record: Record) -> Iterator[Any]:
    sites: Sequence[Record] = record.get("sites") or ()
    rows = []
    for site in sites:
        scale = "" if site.get("scale") is None else f"{site['scale']:.4g}"
        same = ", ".join(map(str, site.get("same_as") or ()))
        index, where = str(site["index"]), site.get("scope") or ", ".join(site["nodes"])
        heads, mask = wording.site_heads(site), wording.site_mask(site)
        causality = wording.site_causality(site)
        words = ", ".join(
            filter(None, (heads, f"scale {scale}", mask, causality, same and f"same as {same}"))
        )
        below = [Text(f"#{index} {where}", style="bold"), indented(words, 2)]
        rows.append(((index, where, heads, scale, mask, causality, same), below))
    if rows:
        heads_of = ["where", "heads", *numeric("scale"), "mask", "causality", "same as"]
        yield fitting([*numeric("#"), *heads_of], rows)
    for entry in record.get("uncut") or ():
        where = entry["scope"] or ", ".join(entry["nodes"])
        yield Text(f"not judged: {where}: {entry['reason']}", style="yellow")
    if record.get("model"):
        judge = f"conformance check {record['target']}"
        yield Text(
            f"a whole model: '{judge}' judges each attention that is not the same as another"
        )


def _deviations(record: Record) -> Iterator[Text]:
    every: Sequence[Record] = record.get("deviations") or ()
    mistaken = [deviation for deviation in every if deviation.get("mistaken")]
    chosen = [deviation for deviation in every if not deviation.get("mistaken")]
    if mistaken:
        yield Text(f"\n{record['mistaken']}:", style="bold red")
        for deviation in mistaken:
            yield Text(f"  {deviation['text']} ({deviation['observed']})")
            yield Text(f"    fix: {deviation['fix']}")
        yield Text("")
    if chosen:
        yield Text("deviations from the standard that are choices of a convention, or mistakes:")
        for deviation in chosen:
            fix = f"; if that is not meant: {deviation['fix']}" if deviation["fix"] else ""
            yield Text(f"  {deviation['text']} ({deviation['observed']}){fix}")
        yield Text("")


def _fact_table(facts: list[Record]) -> Fitting:
    rows = []
    for fact in facts:
        style = "yellow" if fact["confidence"] in _DOUBTFUL else ""
        doubt = " (likely)" if fact["confidence"] == "likely" else ""
        value = Text(f"{fact['found']}{doubt}", style=style)
        below: list[Any] = [Text(fact["fact"], style="bold"), indented(value, 2)]
        if fact["evidence"]:
            below.append(indented(Text(fact["evidence"], style="dim"), 4))
        rows.append(((fact["fact"], value, fact["evidence"]), below))
    names = max(len(fact["fact"]) for fact in facts)
    heads = [
        Column("fact", no_wrap=True),
        Column("found", max_width=_FOUND),
        Column("evidence", style="dim", max_width=_WIDEST - names - _FOUND - 2 * _BETWEEN),
    ]
    return fitting(heads, rows, least=_LEAST)


def show_renewed(report: Record, file: IO[str]) -> None:
    """Write the entries --write-expected added to the file and dropped from it."""
    written = report.get("written_expectations")
    if written is not None:
        write(_renewed_parts(printable_record(written)), file)


def _renewed_parts(written: Record) -> Iterator[Any]:
    if written.get("refused"):
        yield Text(str(written["refused"]), style="bold red")
        return
    added, dropped = written["added"], written["dropped"]
    counts = f"{len(added)} added, {written['kept']} kept, {len(dropped)} dropped"
    yield Text(f"wrote {written['file']}: {counts}", style="bold")
    for entry in added:
        yield indented(f"added {_expectation(entry)}", 2)
    for entry in dropped:
        yield indented(f"dropped {_expectation(entry)}: {entry['dropped']}", 2)
    if added:
        yield Text("say in each new entry why the failure is accepted: its reason is a TODO")


def _expectation(entry: Record) -> str:
    which = [entry[key] for key in ("kind", "diagnosis") if entry.get(key)]
    which += [entry[key] for key in ("dtype", "device") if entry.get(key) not in (None, "*")]
    named = f" ({', '.join(which)})" if which else ""
    return f"{entry['clause']} of {entry['candidate']}{named}"


_REPLAY_WORDS: Final = {
    "fails": ("still fails", "bold red"),
    "differs": ("fails differently", "bold red"),
    "passes": ("passes now", "green"),
}

# Candidate, the clause's entry with today's result, the outcome, and the earlier calls needed.
Entry = tuple[str, Mapping[str, Any], str, str]


def show_replay(entry: Entry, file: IO[str]) -> None:
    """Write the result of one counterexample."""
    name, clause, outcome, after = entry
    words, style = _REPLAY_WORDS[outcome]
    words += f", but only after {after}" if after else ""
    head = f" {clause['id']} [{wording.where(clause)}]: "
    parts: list[Any] = [Text.assemble((printable(name), "bold"), head, (words, style))]
    if outcome != "passes":
        parts.extend(explained(printable_record(dict(clause))))
    write(parts, file)


def show_count(outcomes: Iterable[str], file: IO[str]) -> None:
    """Write how many failures still fail."""
    every = list(outcomes)
    counts = ", ".join(
        f"{every.count(outcome)} {words}"
        for outcome, (words, _) in _REPLAY_WORDS.items()
        if outcome in every
    )
    write([indented(f"{wording.counted(len(every), 'counterexample')}: {counts}", 0)], file)
