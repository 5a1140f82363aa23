"""Annotations of GitHub Actions: workflow commands that its log turns into marks at a line.

Escaped as https://github.com/actions/toolkit does it: ``%`` and line ends in a message, and colons
and commas too in a property, so that nothing a candidate says ends a command or begins one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal

from . import wording
from .complete import complete, file_of, line_of
from .marks import Problem, is_strict, mark, problems, said

Record = Mapping[str, Any]

SHOWN: Final = 10  # of each level GitHub shows no more in one step
_MESSAGE: Final = 1_000
_LEVELS: Final[tuple[Literal["error", "warning"], ...]] = ("error", "warning")
_IN_MESSAGES: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES: Final = {**_IN_MESSAGES, ":": "%3A", ",": "%2C"}


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One mark: at the candidate's line where that is known."""

    level: Literal["error", "warning"]
    title: str
    message: str
    file: str = ""
    line: int | None = None

    def command(self) -> str:
        """The line that GitHub reads."""
        given = {
            "file": self.file,
            "line": "" if self.line is None or not self.file else str(self.line),
            "title": self.title,
        }
        properties = ",".join(
            f"{name}={_escaped(value, _IN_PROPERTIES)}" for name, value in given.items() if value
        )
        text = self.message if len(self.message) <= _MESSAGE else f"{self.message[:_MESSAGE]} …"
        return f"::{self.level} {properties}::{_escaped(text, _IN_MESSAGES)}"


def render_annotations(record: Record) -> str:
    """The commands, errors first; where there are more than GitHub shows the last says so."""
    record = complete(record)
    found = all_annotations(record)
    lines = []
    for level in _LEVELS:
        lines.extend(_shown([entry for entry in found if entry.level == level]))
    return "".join(f"{entry.command()}\n" for entry in lines)


def _shown(found: Sequence[Annotation]) -> list[Annotation]:
    if len(found) <= SHOWN:
        return list(found)
    left = len(found) - SHOWN + 1
    what = "failures" if found[0].level == "error" else "warnings"
    message = (
        f"{left} more {what} are not shown here, as GitHub shows {SHOWN} annotations of a kind in "
        "a step: the log and the step summary have them"
    )
    last = Annotation(level=found[0].level, title=f"{left} more {what}", message=message)
    return [*found[: SHOWN - 1], last]


def all_annotations(record: Record) -> list[Annotation]:
    """Every mark of a complete record, the first of each candidate before the second of any."""
    found = problems(record)
    own = [list(_of_candidate(record, candidate)) for candidate in record["candidates"]]
    rounds = (entry for taken in zip_longest(*own) for entry in taken if entry is not None)
    by_name = {candidate["name"]: candidate for candidate in record["candidates"]}
    return [*(_of_problem(problem, by_name) for problem in found), *rounds]


def _of_problem(problem: Problem, by_name: Mapping[str, Record]) -> Annotation:
    candidate = by_name.get(problem.candidate, {})
    owner = f"{problem.candidate}: " if problem.candidate else ""
    return Annotation(
        level="error",
        title=f"{owner}{problem.id}",
        message=problem.message,
        file=file_of(candidate),
        line=line_of(candidate),
    )


def _of_candidate(record: Record, candidate: Record) -> Iterator[Annotation]:
    """One mark a clause, however many dtypes it failed in, and one a contradiction."""
    strict = is_strict(record)
    file, line = file_of(candidate), line_of(candidate)
    by_clause: dict[tuple[str, str], list[Record]] = {}
    for clause in candidate["clauses"]:
        level = _level(clause, strict=strict)
        if level:
            by_clause.setdefault((clause["id"], level), []).append(clause)
    for (slug, level), clauses in by_clause.items():
        yield Annotation(
            level="error" if level == "error" else "warning",
            title=f"{candidate['name']}: {slug}",
            message=_message(clauses),
            file=file,
            line=line,
        )
    for sentence in candidate["warnings"]:
        title = f"{candidate['name']}: declaration"
        yield Annotation(level="warning", title=title, message=sentence, file=file, line=line)


def _level(clause: Record, *, strict: bool) -> str:
    marked = mark(clause, strict=strict)
    if marked in ("failed", "error"):
        return "error"
    return "warning" if marked == "skipped" and clause["status"] == "failed" else ""


def _message(clauses: Sequence[Record]) -> str:
    """What the first shows, how to mend it, and in what else the clause failed."""
    first = clauses[0]
    told = dict(wording.explanation(first))
    lines = [f"{said(first)} ({_where(first)})"]
    lines.extend(
        f"{label}: {told[label]}" for label in ("requires", "diagnosis", "fix") if label in told
    )
    if len(clauses) > 1:
        lines.append(f"also in {', '.join(map(_where, clauses[1:]))}")
    return "\n".join(lines)


def _where(clause: Record) -> str:
    return str(
        clause["dtype"] if clause["device"] == "cpu" else f"{clause['dtype']} {clause['device']}"
    )


def _escaped(text: str, signs: Mapping[str, str]) -> str:
    return "".join(signs.get(sign, sign) for sign in text)
