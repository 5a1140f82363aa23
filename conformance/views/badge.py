"""The JSON of a shields.io endpoint badge: https://shields.io/badges/endpoint-badge."""

from __future__ import annotations

import json
from typing import Any, Final

from ..base.record import GREEN
from .complete import Record, complete, is_cut
from .verdict_marks import is_strict, mark, problems

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


def render_badge(record: Record) -> str:
    """The badge of a record; only a green run lets the badge's URL choose another colour."""
    message, word = _message(complete(record))
    badge: dict[str, Any] = {
        "schemaVersion": 1,
        "label": LABEL,
        "message": message,
        "color": _COLOURS[word],
    }
    if word not in GREEN:
        badge["isError"] = True
    return json.dumps(badge, indent=2) + "\n"


def _message(record: Record) -> tuple[str, str]:
    """The text of the badge, and the word that gives its colour: the worst of all candidates."""
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
    """A candidate's verdict; "fails" for a failed SHOULD of a strict run."""
    verdict = str(candidate["verdict"])
    if verdict in GREEN and any(
        mark(clause, strict=strict) == "failed" for clause in candidate["clauses"]
    ):
        return "fails"
    return verdict if verdict in _COLOURS else "inconclusive"


def _sentence(word: str, count: int) -> str:
    """``conforms``, ``3 conform with deviations``."""
    if count == 1:
        return word.replace("-", " ")
    if word in GREEN:
        return f"{count} {word.replace('conforms', 'conform').replace('-', ' ')}"
    return f"{count} of {count} {_plural(word, count)}"


def _plural(word: str, count: int) -> str:
    if word == "fails" and count > 1:
        return "fail"
    return "in error" if word == "error" else word
