"""The JSON of a shields.io endpoint badge: https://shields.io/badges/endpoint-badge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ..base.record import GREEN
from .complete import complete, is_cut
from .marks import is_strict, mark, problems

Record = Mapping[str, Any]

LABEL: Final = "attention"
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
_BEST_FIRST: Final = tuple(_COLOURS)


def render_badge(record: Record) -> str:
    """The record as what a badge says; only a green run can be given another colour by its URL."""
    record = complete(record)
    message, word = _message(record)
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
    """What the badge says, and the word that gives its colour: the worst of all candidates."""
    words = [_word(candidate, strict=is_strict(record)) for candidate in record["candidates"]]
    if not words and not is_cut(record):
        return "nothing checked", "inconclusive"
    worst = max(words, key=_BEST_FIRST.index, default="inconclusive")
    if (half := _half(record)) and worst in (*GREEN, "inconclusive"):
        return half, half
    if worst in GREEN and problems(record):
        return "stale expectations", "fails"
    if len(set(words)) == 1:
        return _spoken(worst, len(words)), worst
    if worst in GREEN:
        return f"{len(words)} conform, {words.count(worst)} {_how(worst)}", worst
    return f"{words.count(worst)} of {len(words)} {_told(worst, words.count(worst))}", worst


def _half(record: Record) -> str:
    """What ended the run before its end, or "": green is no verdict then."""
    if record["interrupted"]:
        return "interrupted"
    return "time limit reached" if is_cut(record) else ""


def _word(candidate: Record, *, strict: bool) -> str:
    """A candidate's verdict; a failed SHOULD is a failure where the run says so."""
    verdict = candidate["verdict"]
    marks = [mark(clause, strict=strict) for clause in candidate["clauses"]]
    return "fails" if verdict in GREEN and "failed" in marks else _known(verdict)


def _known(verdict: str) -> str:
    return verdict if verdict in _COLOURS else "inconclusive"


def _spoken(word: str, count: int) -> str:
    """``conforms``, ``3 conform with deviations``."""
    if count == 1:
        return word.replace("-", " ")
    if word in GREEN:
        return f"{count} {word.replace('conforms', 'conform').replace('-', ' ')}"
    return f"{count} of {count} {_told(word, count)}"


def _how(word: str) -> str:
    return word.removeprefix("conforms-").replace("-", " ")


def _told(word: str, count: int) -> str:
    """The word as a number of candidates has it."""
    if word == "fails" and count > 1:
        return "fail"
    return "in error" if word == "error" else word
