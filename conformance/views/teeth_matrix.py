"""The clause x mistake matrix as cells and as lines of text: what all its views share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

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
