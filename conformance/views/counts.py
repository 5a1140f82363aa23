"""How many clauses of a candidate ended how, under the heads that tables have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import wording

Record = Mapping[str, Any]

COLUMNS: Final = {  # status, and whether only that of a MUST (or only that of the others) counts
    "passed": ("passed", None),
    "failed": ("failed", True),
    "SHOULD failed": ("failed", False),
    "expected": ("expected-failure", None),
    "unexpected": ("unexpected-pass", None),
    "untestable": ("untestable", None),
    "n/a": ("not-applicable", None),
    "error": ("error", None),
}
_ALWAYS_SHOWN: Final = ("passed", "failed", "expected", "n/a")


def shown_columns(candidates: Sequence[Record]) -> list[str]:
    """The heads of a table of candidates: those that would be empty are left out."""
    return [
        name
        for name in COLUMNS
        if name in _ALWAYS_SHOWN or any(count(candidate, name) for candidate in candidates)
    ]


def count(candidate: Record, column: str) -> int:
    """The number of a candidate's clauses under a head."""
    status, must = COLUMNS[column]
    return sum(
        clause["status"] == status and must in (None, clause["level"] == "MUST")
        for clause in candidate["clauses"]
    )


def worst_margin(candidate: Record) -> tuple[str, str]:
    """The margin that came nearest to its bound among clauses that passed, and whose it is."""
    passed = [
        clause
        for clause in candidate["clauses"]
        if clause["margin"] is not None and clause["status"] == "passed"
    ]
    if not passed:
        return "-", ""
    worst = max(passed, key=lambda clause: float(clause["margin"]))
    return wording.margin(worst["margin"]), str(worst["id"])
