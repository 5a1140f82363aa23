"""The clause x mistake matrix: as cells, as lines at a terminal, and as markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ..base.printable_text import few, printable_record
from .complete import Record
from .markdown import row as markdown_row
from .markdown import table
from .printing import Fitting, fitting, indented, numeric, write

CAUGHT: Final = "x"
PRIMARY: Final = "X"
SLIPPED: Final = "o"
NOT_RUN: Final = " "
SYMBOLS: Final = {
    PRIMARY: "caught by its primary clause",
    CAUGHT: "caught",
    SLIPPED: "its primary clause did not catch it",
    ".": "passed",
    "?": "untestable",
    "~": "failed as expected",
    "!": "the harness failed",
    NOT_RUN: "not applicable, or not run",
}
_BY_STATUS: Final = {
    "failed": CAUGHT,
    "passed": ".",
    "untestable": "?",
    "expected-failure": "~",
    "unexpected-pass": CAUGHT,
    "error": "!",
}


def symbol(row: Record, slug: str) -> str:
    """The sign of one cell; ``row`` is a mistake or a correct candidate."""
    sign = _BY_STATUS.get(row["clauses"].get(slug, ""), NOT_RUN)
    if slug != row.get("primary"):
        return sign
    if sign == CAUGHT:
        return PRIMARY
    return sign if sign == "!" else SLIPPED


@dataclass(frozen=True)
class Family:
    """The clauses of one family, as neighbouring columns with their numbers from 1."""

    name: str
    slugs: tuple[str, ...]
    first: int

    @property
    def numbers(self) -> range:
        """The numbers of the family's columns."""
        return range(self.first, self.first + len(self.slugs))


def families(record: Record) -> list[Family]:
    """The columns of the matrix, in the order of the specification, family by family."""
    members: dict[str, list[str]] = {}
    for clause in record["clauses"]:
        members.setdefault(clause["id"].partition(".")[0], []).append(clause["id"])
    columns, first = [], 1
    for name, slugs in members.items():
        columns.append(Family(name, tuple(slugs), first))
        first += len(slugs)
    return columns


def _numbered(record: Record) -> Iterator[tuple[int, Record]]:
    by_slug = {clause["id"]: clause for clause in record["clauses"]}
    slugs = (slug for family in families(record) for slug in family.slugs)
    yield from enumerate(map(by_slug.__getitem__, slugs), 1)


def blocks(record: Record, width: int) -> Iterator[list[str]]:
    """The matrix as lines of text, in as many blocks of columns as the width asks for."""
    rows = [*record["mistakes"], *record["correct"]]
    label = max((len(row["name"]) for row in rows), default=0) + 2
    for columns in _fitting(families(record), width - label):
        yield [*_header(columns, label), *(_line(row, columns, label) for row in rows)]


def _fitting(columns: Sequence[Family], width: int) -> Iterator[list[Family]]:
    """Yield families side by side, in lines of limited width."""
    line: list[Family] = []
    for family in columns:
        if line and sum(len(other.slugs) + 1 for other in line) + len(family.slugs) > width:
            yield line
            line = []
        line.append(family)
    if line:
        yield line


def _header(columns: Sequence[Family], label: int) -> Iterator[str]:
    names = (family.name[: len(family.slugs)].ljust(len(family.slugs)) for family in columns)
    yield " " * label + " ".join(names).rstrip()
    digits = max(len(str(family.numbers[-1])) for family in columns)
    for place in range(digits):
        numbers = (
            "".join(str(number).rjust(digits)[place] for number in family.numbers)
            for family in columns
        )
        yield (" " * label + " ".join(numbers)).rstrip()


def _line(row: Record, columns: Sequence[Family], label: int) -> str:
    cells = " ".join("".join(symbol(row, slug) for slug in family.slugs) for family in columns)
    return f"{row['name'].ljust(label)}{cells}".rstrip()


def legend() -> str:
    """Explain the signs, in one line."""
    return ", ".join(f"{sign.strip() or 'blank'} {meaning}" for sign, meaning in SYMBOLS.items())


def summary_lines(record: Record) -> Iterator[tuple[bool, str]]:
    """Yield the verdict in sentences, with a flag for good ones; the last sums up."""
    summary = record["summary"]
    by_name = {row["name"]: row for row in (*record["mistakes"], *record["correct"])}
    for name in summary["errors"]:
        yield False, f"the harness failed on {name}: {_reason(by_name[name], 'error')}"
    for name in summary["missed"]:
        yield False, f"not caught: {name}: {by_name[name]['sentence']}"
    for name in summary["primary_missed"]:
        row = by_name[name]
        if row["caught"]:
            others = f"caught by {few(row['caught_by'], 4)}, but not by its primary clause"
            yield False, f"{name}: {others} {row['primary']} ({row['primary_reason']})"
    for slug in () if record["interrupted"] else summary["toothless_judged"]:
        yield False, f"catches no mistake: {slug}"
    if summary["elsewhere"]:
        yield True, f"not run in one process on a CPU: {few(summary['elsewhere'], 4)}"
    yield from _correct_failing(summary, by_name)
    if not_run := summary["not_run"]:
        yield False, f"not run to the end: {len(not_run)} ({few(not_run, 4)})"
    red = ("missed", "primary_missed", "toothless_judged", "flagged", "not_run", "errors")
    yield not any(summary[name] for name in red), total(record)


def _correct_failing(summary: Record, by_name: Record) -> Iterator[tuple[bool, str]]:
    for name in summary["flagged"]:
        row = by_name[name]
        for slug in row["flagged"]:
            yield False, f"correct, but flagged: {name} by {slug}: {row['reasons'][slug]}"
    for name in summary["should_failed"]:
        failed = few(by_name[name]["should_failed"], 4)
        yield True, f"correct, but fails what it should keep: {name}: {failed}"


def _reason(row: Record, status: str) -> str:
    slugs = (slug for slug, own in row["clauses"].items() if own == status)
    return next((str(row["reasons"].get(slug, "")) for slug in slugs), "")


def total(record: Record) -> str:
    """Summarise the matrix in one sentence."""
    summary = record["summary"]
    toothed = summary["clauses"] - len(summary["toothless"])
    parts = [
        f"{summary['caught']} of {summary['mistakes']} mistakes caught",
        f"{summary['mistakes'] - len(summary['primary_missed'])} by their primary clause",
        f"{toothed} of {summary['clauses']} clauses catch one",
    ]
    if summary["correct"]:
        flagged = len(summary["flagged"]) or "none"
        parts.append(f"{flagged} of {summary['correct']} correct candidates flagged")
    how = f"profile {record['profile']}, seed {record['seed']}, {duration(record['seconds'])}"
    stopped = "interrupted: " if record["interrupted"] else ""
    return f"{stopped}{', '.join(parts)} ({how})"


def duration(seconds: float) -> str:
    """``4 s``, or ``12 min 5 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def show_teeth(record: Record, file: IO[str]) -> None:
    """Write the matrix, the clauses with the mistakes they catch, and the verdict last."""
    write(_parts(printable_record(record)), file)


def _parts(record: Record) -> Iterator[Any]:
    if not record["first"] and record["mistakes"]:
        yield _Matrix(record)
        yield Text(legend(), style="dim")
        yield Text("")
    if record["clauses"]:
        yield _clauses(record)
        yield Text("")
    *lines, (good, last) = summary_lines(record)
    for fine, sentence in lines:
        yield Text(sentence, style="" if fine else "red")
    yield Text(last, style="bold green" if good else "bold red")


class _Matrix:
    def __init__(self, record: Record) -> None:
        self.record = record

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        styles = {PRIMARY: "green", CAUGHT: "green", SLIPPED: "bold red", "!": "bold magenta"}
        names = {row["name"] for row in self.record["mistakes"]}
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
    rows = []
    for number, clause in _numbered(record):
        slug, level = clause["id"], clause["level"]
        caught, primary = len(clause["caught"]), len(clause["primary_of"])
        style = "" if caught else "red"
        cells = (str(number), slug, level, str(caught or "-"), str(primary or "-"))
        counts = indented(f"{level}, catches {caught}, primary of {primary}", 2)
        styled = [Text(cell, style=style) for cell in cells]
        rows.append((styled, [Text(f"{number} {slug}", style=style), counts]))
    heads = [*numeric("no."), "clause", "level", *numeric("catches", "primary of")]
    return fitting(heads, rows)


_WIDTH: Final = 10_000
_HEADER: Final = """# The matrix of clauses and mistakes

Generated by `{command}`; docs/teeth.md says how to read it.
Specification `{specification}`, attention-conformance {version}, torch {torch}, profile {profile},
seed {seed}.
"""


def render_teeth_markdown(record: Record) -> str:
    """The whole document; equal runs differ only in the time they took."""
    return "\n".join(_markdown_parts(record)) + "\n"


def _markdown_parts(record: Record) -> Iterator[str]:
    yield _HEADER.format(
        command=_command(record),
        specification=record["tool"]["specification"],
        version=record["tool"]["version"],
        torch=record["environment"].get("torch", "unknown"),
        profile=record["profile"],
        seed=record["seed"],
    )
    yield from (f"- {_safe(sentence)}" for _, sentence in summary_lines(record))
    clauses = (
        (number, f"`{row['id']}`", row["level"], len(row["caught"]), _safe(*row["primary_of"]))
        for number, row in _numbered(record)
    )
    heads = ["no.", "clause", "level", "catches", "primary of"]
    yield f"\n## Clauses\n\n{_table(heads, clauses, right=(0, 3))}"
    yield f"\n## Matrix\n\n{legend()}.\n"
    for lines in blocks(record, _WIDTH):
        yield "\n".join(["```text", *lines, "```"])
    mistakes = (
        (
            _safe(row["name"]),
            _safe(row["sentence"]),
            f"`{row['primary']}`" if row["primary"] else "",
            len(row["caught_by"]) or "**nothing**",
        )
        for row in record["mistakes"]
    )
    heads = ["mistake", "what is wrong", "primary clause", "caught by"]
    yield f"\n## Mistakes\n\n{_table(heads, mistakes, right=(3,))}"
    correct = (
        (
            _safe(row["name"]),
            row["kind"],
            _safe(row["origin"]),
            ", ".join(row["flagged"]) or "nothing",
        )
        for row in record["correct"]
    )
    heads = ["candidate", "kind", "from", "flagged by"]
    yield f"\n## Correct candidates\n\n{_table(heads, correct)}"


def _table(
    heads: Sequence[str], rows: Iterable[Iterable[object]], right: Sequence[int] = ()
) -> str:
    rules = ["---:" if number in right else "---" for number in range(len(heads))]
    return table(heads, (markdown_row(*map(str, cells)) for cells in rows), rules)


def _command(record: Record) -> str:
    selection = record["selection"]
    words = ["conformance", "teeth", *selection["targets"]]
    for option in ("only", "skip", "correct"):
        words += [word for value in selection[option] for word in (f"--{option}", value)]
    words += ["--first"] if record["first"] else []
    return shlex.join([*words, "--markdown", "FILE"])


def _safe(*texts: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", " ".join(", ".join(texts).split()))
