"""A record as pages want it, and what its statuses are called and look like there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from .complete import complete as completed

Record = dict[str, Any]

_TOOL: Final[Record] = {"name": "attention-conformance", "version": "", "specification": ""}
_VIOLATION: Final[Record] = {"kind": "", "message": "", "measured": {}, "where": []}


def complete(record: Mapping[str, Any]) -> Record:
    """The same record with every key that pages look at; the given one stays as it is."""
    made = completed(_without_nulls(record))
    made["tool"] = filled(_TOOL, made["tool"])
    for candidate in made["candidates"]:
        for clause in candidate["clauses"]:
            _finish(clause)
    return made


def _without_nulls(record: Mapping[str, Any]) -> Record:
    """The record, its candidates and their clauses without keys whose value is null."""
    made = filled({}, record)
    made["candidates"] = [filled({}, one) for one in made.get("candidates", ())]
    for one in made["candidates"]:
        one["clauses"] = [filled({}, clause) for clause in one.get("clauses", ())]
    return made


def _finish(clause: Record) -> None:
    clause["margin"] = number(clause["margin"])
    clause["blame"] = clause.get("blame")
    if clause["violation"] is not None:
        clause["violation"] = filled(_VIOLATION, clause["violation"])


def filled(defaults: Record, given: Any) -> Record:
    """A mapping with defaults in the place of what is missing or null."""
    own = given if isinstance(given, Mapping) else {}
    return {**defaults, **{name: value for name, value in own.items() if value is not None}}


def number(value: Any) -> float | None:
    """A number of a record, where ``"inf"`` and ``"nan"`` are texts; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def where(clause: Mapping[str, Any]) -> str:
    """The dtype of a result, with the device where that is not the CPU."""
    device = clause["device"]
    return str(clause["dtype"] if device == "cpu" else f"{clause['dtype']} {device}".strip())


def worst(margins: Iterable[float | None]) -> float | None:
    """The largest margin, NaN being the worst; None where there is none."""
    found = [margin for margin in margins if margin is not None]
    return max(found, key=lambda one: math.inf if math.isnan(one) else one) if found else None


Clause = Mapping[str, Any]

# Class, sign and meaning of a result, in the order of a legend.
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "pass": ("✓", "passed"),
    "fail": ("✗", "failed a MUST"),
    "should": ("△", "failed a SHOULD or MAY"),
    "unexpected": ("+", "passed, but was expected to fail"),
    "error": ("!", "the harness failed"),
    "untestable": ("?", "could not be tested"),
    "expected": ("~", "failed as expected"),
    "na": ("-", "not applicable"),
    "absent": ("", "not part of the run"),
}
# What is counted of a candidate, in the order in which it is told.
LABELS: Final[Mapping[str, str]] = {
    "pass": "passed",
    "fail": "failed",
    "should": "SHOULD failed",
    "unexpected": "unexpected",
    "expected": "expected",
    "untestable": "untestable",
    "error": "error",
    "na": "n/a",
}
# From the worst: what a cell shows that stands for several results.
WORST_FIRST: Final = (
    "error",
    "fail",
    "unexpected",
    "untestable",
    "should",
    "expected",
    "pass",
    "na",
    "absent",
)
_BY_STATUS: Final = {
    "passed": "pass",
    "error": "error",
    "not-applicable": "na",
    "untestable": "untestable",
    "expected-failure": "expected",
    "unexpected-pass": "unexpected",
}
_VERDICTS: Final = {
    "conforms": ("pass", "✓"),
    "conforms-with-deviations": ("pass", "✓"),
    "conforms-up-to-gauge": ("pass", "✓"),
    "inconclusive": ("untestable", "?"),
    "interrupted": ("untestable", "?"),
    "error": ("error", "!"),
}


def kind(clause: Clause) -> str:
    """The class of a result: its status, and of a failure whether it is one of a MUST."""
    if clause["status"] == "failed":
        return "fail" if clause["level"] == "MUST" else "should"
    return _BY_STATUS.get(clause["status"], "untestable")


def sign(name: str) -> str:
    """The sign of a class."""
    return KINDS[name][0]


def verdict(word: str) -> tuple[str, str]:
    """Class and sign of a verdict; one that is not known counts as a failure."""
    return _VERDICTS.get(word, ("fail", "✗"))


def margin(value: float | None) -> str:
    """A margin with two digits; infinity as its sign."""
    if value is None:
        return ""
    if math.isinf(value):
        return "∞"
    return f"{value:.2g}"


def short(text: str, most: int) -> str:
    """A text cut to a length, with what was cut off counted."""
    text = str(text)
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters in the record)"


def duration(value: float | None) -> str:
    """``0.25 s``, ``4.1 s`` or ``12 min 5 s``; nothing where it is not known."""
    if not value:
        return ""
    minutes, rest = divmod(round(value), 60)
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"
