"""The clause x mistake matrix: as cells, as lines at a terminal, and as markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import IO, Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..base.texts import printable_record
from .printing import Fitting, indented, write

Record = Mapping[str, Any]

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
        """The numbers of its columns."""
        return range(self.first, self.first + len(self.slugs))


def families(record: Record) -> list[Family]:
    """The columns of the matrix, in the order of the specification, family by family."""
    slugs = [clause["id"] for clause in record["clauses"]]
    order = list(dict.fromkeys(map(_family, slugs)))
    slugs.sort(key=lambda slug: order.index(_family(slug)))
    found, first = [], 1
    for name, group in groupby(slugs, key=_family):
        members = tuple(group)
        found.append(Family(name, members, first))
        first += len(members)
    return found


def _family(slug: str) -> str:
    return slug.partition(".")[0]


def blocks(record: Record, width: int) -> Iterator[list[str]]:
    """The matrix as lines of text, in as many blocks of columns as the width asks for."""
    rows = [*record["mistakes"], *record["correct"]]
    label = max((len(row["name"]) for row in rows), default=0) + 2
    for columns in _fitting(families(record), width - label):
        yield [*_header(columns, label), *(_line(row, columns, label) for row in rows)]


def _fitting(columns: Sequence[Family], width: int) -> Iterator[list[Family]]:
    """Families side by side, a new line where the next would not fit."""
    line: list[Family] = []
    for family in columns:
        if line and sum(len(other.slugs) + 1 for other in line) + len(family.slugs) > width:
            yield line
            line = []
        line.append(family)
    if line:
        yield line


def _header(columns: Sequence[Family], label: int) -> Iterator[str]:
    """The families' names, and the numbers of the columns from top to bottom."""
    yield " " * label + " ".join(_named(family) for family in columns).rstrip()
    digits = max(len(str(family.numbers[-1])) for family in columns)
    for place in range(digits):
        numbers = (
            "".join(str(number).rjust(digits)[place] for number in family.numbers)
            for family in columns
        )
        yield (" " * label + " ".join(numbers)).rstrip()


def _named(family: Family) -> str:
    size = len(family.slugs)
    return family.name[:size].ljust(size)


def _line(row: Record, columns: Sequence[Family], label: int) -> str:
    cells = " ".join("".join(symbol(row, slug) for slug in family.slugs) for family in columns)
    return f"{row['name'].ljust(label)}{cells}".rstrip()


def legend() -> str:
    """What the signs mean, in one line."""
    return ", ".join(
        f"{sign if sign.strip() else 'blank'} {meaning}" for sign, meaning in SYMBOLS.items()
    )


def summary_lines(record: Record) -> Iterator[tuple[bool, str]]:
    """The verdict in sentences, each with whether it is as it should be; the last is the sum."""
    summary = record["summary"]
    by_name = {row["name"]: row for row in (*record["mistakes"], *record["correct"])}
    for name in summary["errors"]:
        yield False, f"the harness failed on {name}: {_reason(by_name[name], 'error')}"
    for name in summary["missed"]:
        yield False, f"not caught: {name}: {by_name[name]['sentence']}"
    for name in summary["primary_missed"]:
        row = by_name[name]
        if row["caught"]:
            told = f"caught by {_some(row['caught_by'])}, but not by its primary clause"
            yield False, f"{name}: {told} {row['primary']} ({row['primary_reason']})"
    for slug in () if record["interrupted"] else summary["toothless_judged"]:
        yield False, f"catches no mistake: {slug}"
    if summary["elsewhere"]:
        yield True, f"not asked on a CPU: {_some(summary['elsewhere'])}"
    yield from _about_correct(summary, by_name)
    if summary["not_run"]:
        told = f"{len(summary['not_run'])} ({_some(summary['not_run'])})"
        yield False, f"not run to the end: {told}"
    yield _is_green(record), total(record)


def _about_correct(summary: Record, by_name: Mapping[str, Record]) -> Iterator[tuple[bool, str]]:
    """What the correct candidates are accused of."""
    for name in summary["flagged"]:
        row = by_name[name]
        for slug in row["flagged"]:
            yield False, f"correct, but flagged: {name} by {slug}: {row['reasons'][slug]}"
    for name in summary["should_failed"]:
        failed = _some(by_name[name]["should_failed"])
        yield True, f"correct, but fails what it should keep: {name}: {failed}"


def _is_green(record: Record) -> bool:
    summary = record["summary"]
    red = ("missed", "primary_missed", "toothless_judged", "flagged", "not_run", "errors")
    return not any(summary[name] for name in red)


def _reason(row: Record, status: str) -> str:
    found = (
        row["reasons"].get(slug, "") for slug, said in row["clauses"].items() if said == status
    )
    return next(found, "")


def _some(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"


def total(record: Record) -> str:
    """The sum in one sentence."""
    summary = record["summary"]
    toothed = summary["clauses"] - len(summary["toothless"])
    told = [
        f"{summary['caught']} of {summary['mistakes']} mistakes caught",
        f"{summary['mistakes'] - len(summary['primary_missed'])} by their primary clause",
        f"{toothed} of {summary['clauses']} clauses catch one",
    ]
    if summary["correct"]:
        flagged = len(summary["flagged"]) or "none"
        told.append(f"{flagged} of {summary['correct']} correct candidates flagged")
    how = f"profile {record['profile']}, seed {record['seed']}, {duration(record['seconds'])}"
    stopped = "interrupted: " if record["interrupted"] else ""
    return f"{stopped}{', '.join(told)} ({how})"


def duration(seconds: float) -> str:
    """``4 s``, or ``12 min 5 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


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


_WIDTH: Final = 10_000
_HEADER: Final = """# The matrix of clauses and mistakes

Generated by `{command}`; docs/teeth.md says how to read it.
Specification `{specification}`, attention-conformance {version}, torch {torch}, profile {profile},
seed {seed}.
"""


def render_markdown(record: Record) -> str:
    """The whole document; the same run gives the same text but for the time it took."""
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
    yield "\n## Clauses\n"
    yield "| no. | clause | level | catches | primary of |"
    yield "| ---: | --- | --- | ---: | --- |"
    yield from _markdown_clauses(record)
    yield "\n## Matrix\n"
    yield f"{legend()}.\n"
    for lines in blocks(record, _WIDTH):
        yield "\n".join(["```text", *lines, "```"])
    yield "\n## Mistakes\n"
    yield "| mistake | what is wrong | primary clause | caught by |"
    yield "| --- | --- | --- | ---: |"
    yield from (_mistake(row) for row in record["mistakes"])
    yield "\n## Correct candidates\n"
    yield "| candidate | kind | from | flagged by |"
    yield "| --- | --- | --- | --- |"
    yield from (_correct(row) for row in record["correct"])


def _command(record: Record) -> str:
    """The command that makes this page again."""
    selection = record["selection"]
    words = ["conformance", "teeth", *selection["targets"]]
    for option in ("only", "skip", "correct"):
        words += [word for value in selection[option] for word in (f"--{option}", value)]
    words += ["--first"] if record["first"] else []
    return shlex.join([*words, "--markdown", "FILE"])


def _markdown_clauses(record: Record) -> Iterator[str]:
    by_slug = {clause["id"]: clause for clause in record["clauses"]}
    for family in families(record):
        for number, slug in zip(family.numbers, family.slugs, strict=True):
            clause = by_slug[slug]
            primary = ", ".join(clause["primary_of"])
            counted = len(clause["caught"])
            yield f"| {number} | `{slug}` | {clause['level']} | {counted} | {_safe(primary)} |"


def _mistake(row: Record) -> str:
    caught = len(row["caught_by"]) or "**nothing**"
    primary = f"`{row['primary']}`" if row["primary"] else ""
    return f"| {_safe(row['name'])} | {_safe(row['sentence'])} | {primary} | {caught} |"


def _correct(row: Record) -> str:
    flagged = ", ".join(row["flagged"]) or "nothing"
    return f"| {_safe(row['name'])} | {row['kind']} | {_safe(row['origin'])} | {flagged} |"


def _safe(text: str) -> str:
    """A text in one cell of a table, shown as it is."""
    one_line = " ".join(text.split())
    for sign in ("\\", "|", "*", "_", "`", "<", "[", "]"):
        one_line = one_line.replace(sign, f"\\{sign}")
    return one_line
