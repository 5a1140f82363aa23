"""What statuses and verdicts are called and look like on pages: a sign and a class beside the word.

Nothing is told by colour alone: the sign and the word are always there as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

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
