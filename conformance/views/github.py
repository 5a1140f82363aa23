"""Annotations of GitHub Actions: workflow commands shown as marks at lines.

Escaped like in https://github.com/actions/toolkit: ``%`` and line ends in a message, and colons and
commas too in a property, so that a candidate's text neither ends nor begins a command. The badge of
a README is the JSON of https://shields.io/badges/endpoint-badge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

from ..base.printable_text import few
from ..base.record import GREEN
from . import wording
from .complete import Record, complete, file_of, is_cut, line_of
from .verdict_marks import is_strict, mark, problems, summary_sentence, told

SHOWN: Final = 10  # of each level GitHub shows no more in one step
_MESSAGE: Final = 1_000
_NAMED: Final = 8
_LEVELS: Final = {"error": "failures", "warning": "warnings"}
_IN_MESSAGES: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTIES: Final = _IN_MESSAGES | str.maketrans({":": "%3A", ",": "%2C"})
LABEL: Final = "attention"
# The colour of each word, from the best word to the worst.
_COLOURS: Final = {
    "conforms": "brightgreen",
    "conforms-with-deviations": "green",
    "conforms-up-to-gauge": "yellowgreen",
    "inconclusive": "yellow",
    "time limit reached": "yellow",
    "interrupted": "yellow",
    "fails": "red",
    "error": "lightgrey",
}


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One mark, at the candidate's line if known."""

    level: str
    title: str
    message: str
    file: str = ""
    line: int | None = None

    def command(self) -> str:
        """Return the command line read by GitHub."""
        line = "" if self.line is None or not self.file else str(self.line)
        properties = ",".join(
            f"{name}={value.translate(_IN_PROPERTIES)}"
            for name, value in (("file", self.file), ("line", line), ("title", self.title))
            if value
        )
        text = self.message if len(self.message) <= _MESSAGE else f"{self.message[:_MESSAGE]} …"
        return f"::{self.level} {properties}::{text.translate(_IN_MESSAGES)}"


def render_annotations(record: Record) -> str:
    """Return the commands, errors first; the last one counts those beyond GitHub's limit."""
    every = all_annotations(complete(record))
    shown = [
        annotation
        for level in _LEVELS
        for annotation in _shown([annotation for annotation in every if annotation.level == level])
    ]
    return "".join(f"{annotation.command()}\n" for annotation in shown)


def _shown(annotations: Sequence[Annotation]) -> Sequence[Annotation]:
    if len(annotations) <= SHOWN:
        return annotations
    level = annotations[0].level
    title = f"{len(annotations) - SHOWN + 1} more {_LEVELS[level]}"
    message = (
        f"{title} are not shown here, as GitHub shows {SHOWN} annotations of a kind in "
        "a step: the log and the step summary have them"
    )
    return [*annotations[: SHOWN - 1], Annotation(level=level, title=title, message=message)]


def all_annotations(record: Record) -> list[Annotation]:
    """Return every mark of a complete record, all candidates' first marks before second ones."""
    own = [list(_mark_candidate(record, candidate)) for candidate in record["candidates"]]
    rounds = (entry for turn in zip_longest(*own) for entry in turn if entry is not None)
    by_name = {candidate["name"]: candidate for candidate in record["candidates"]}
    of_the_run = []
    for problem in problems(record):
        owner = f"{problem.candidate}: " if problem.candidate else ""
        annotation = Annotation(
            level="error", title=f"{owner}{problem.id}", message=problem.message
        )
        of_the_run.append(_placed(annotation, by_name.get(problem.candidate, {})))
    return [*of_the_run, *rounds]


def _placed(annotation: Annotation, candidate: Record) -> Annotation:
    return replace(annotation, file=file_of(candidate), line=line_of(candidate))


def _mark_candidate(record: Record, candidate: Record) -> Iterator[Annotation]:
    """Yield marks for causes, for remaining red clauses, and for warnings.

    A cause's mark stands at the blamed line. A clause failing in several dtypes has one mark.
    """
    by_name = {str(cause["name"]): cause for cause in wording.causes(candidate)}
    by_subject: dict[tuple[str, str], list[Record]] = {}
    for clause in wording.sort_by_cause({**candidate, "clauses": told(record, candidate)}):
        if level := _level(clause, strict=is_strict(record)):
            failed = clause["status"] == "failed"
            cause = wording.cause_of(candidate, clause) if failed else None
            subject = clause["id"] if cause is None else str(cause["name"])
            by_subject.setdefault((subject, level), []).append(clause)
    for (subject, level), clauses in by_subject.items():
        title = f"{candidate['name']}: {subject}"
        annotation = Annotation(level=level, title=title, message=_message(clauses))
        line = wording.blamed_line(by_name.get(subject) or {})
        if line is None:
            yield _placed(annotation, candidate)
        else:
            yield replace(annotation, file=line.file, line=line.number)
    for sentence in candidate["warnings"]:
        title = f"{candidate['name']}: declaration"
        yield _placed(Annotation(level="warning", title=title, message=sentence), candidate)


def _level(clause: Record, *, strict: bool) -> str:
    marked = mark(clause, strict=strict)
    if marked in ("failed", "error"):
        return "error"
    return "warning" if marked == "skipped" and clause["status"] == "failed" else ""


def _message(clauses: Sequence[Record]) -> str:
    first = clauses[0]
    others = list(dict.fromkeys(one["id"] for one in clauses if one["id"] != first["id"]))
    dtypes = [wording.where(one) for one in clauses[1:] if one["id"] == first["id"]]
    explained = dict(wording.explanation(first))
    lines = [f"{summary_sentence(first)} ({wording.where(first)})"]
    labels = ["fix", "line", "requires"] if wording.caused(first) else ["diagnosis", "requires"]
    lines.extend(f"{label}: {explained[label]}" for label in labels if label in explained)
    if dtypes:
        lines.append(f"also in {', '.join(dtypes)}")
    if others:
        lines.append(f"fails as well: {few(others, _NAMED)}")
    return "\n".join(lines)


def render_badge(record: Record) -> str:
    """The badge of a record; only a green run lets the badge's URL choose another colour."""
    message, word = _badge_message(complete(record))
    badge: dict[str, Any] = {
        "schemaVersion": 1,
        "label": LABEL,
        "message": message,
        "color": _COLOURS[word],
    }
    if word not in GREEN:
        badge["isError"] = True
    return json.dumps(badge, indent=2) + "\n"


def _badge_message(record: Record) -> tuple[str, str]:
    """Return the badge's text, and the word that gives its colour: the worst of all candidates."""
    words = [_word(candidate, strict=is_strict(record)) for candidate in record["candidates"]]
    if not words and not is_cut(record):
        return "nothing checked", "inconclusive"
    worst = max(words, key=list(_COLOURS).index, default="inconclusive")
    # Green is no verdict on a run that ended early.
    ended = "interrupted" if record["interrupted"] else "time limit reached" * is_cut(record)
    if ended and worst in (*GREEN, "inconclusive"):
        return ended, ended
    if worst in GREEN and problems(record):
        return "stale expectations", "fails"
    if len(set(words)) == 1:
        return _sentence(worst, len(words)), worst
    number = words.count(worst)
    if worst in GREEN:
        how = worst.removeprefix("conforms-").replace("-", " ")
        return f"{len(words)} conform, {number} {how}", worst
    return f"{number} of {len(words)} {_plural(worst, number)}", worst


def _word(candidate: Record, *, strict: bool) -> str:
    """Return a candidate's verdict; "fails" for a failed SHOULD of a strict run."""
    verdict = str(candidate["verdict"])
    if verdict in GREEN and any(
        mark(clause, strict=strict) == "failed" for clause in candidate["clauses"]
    ):
        return "fails"
    return verdict if verdict in _COLOURS else "inconclusive"


def _sentence(word: str, count: int) -> str:
    """Return ``conforms``, ``3 conform with deviations``."""
    if count == 1:
        return word.replace("-", " ")
    if word in GREEN:
        return f"{count} {word.replace('conforms', 'conform').replace('-', ' ')}"
    return f"{count} of {count} {_plural(word, count)}"


def _plural(word: str, count: int) -> str:
    if word == "fails" and count > 1:
        return "fail"
    return "in error" if word == "error" else word
