"""One clause in two records: what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

Record = Mapping[str, Any]
Change = Literal["added", "fixed", "changed", "drift", "same"]
FAILS: Final = ("failed", "expected-failure", "error")
# How much is known to hold, from nothing to all of it.
_KNOWN: Final = {"untestable": 0, "not-applicable": 1, "unexpected-pass": 2, "passed": 3}
# Below a hundredth of its bound a margin is rounding: it counts as a hundredth.
PARTS: Final = 100


def side(clause: Record) -> dict[str, Any]:
    """What a comparison tells of a clause in one of the records."""
    violation = clause.get("violation") or {}
    return {
        "status": clause["status"],
        "kind": violation.get("kind"),
        "diagnosis": [str(entry.get("name")) for entry in clause.get("diagnosis") or ()],
        "margin": clause.get("margin"),
        "examples": clause.get("examples"),
        "message": str(violation.get("message") or clause.get("reason") or ""),
    }


def compared(
    old: Record, new: Record, *, ratio: float, same_problems: bool = True
) -> tuple[Change, bool, str]:
    """What became of a clause, whether that is worse, and in which way.

    Margins depend on the problems that were drawn: without ``same_problems``, or where one record
    has tried more of them, one that moved is told, but no worse.
    """
    before, after = old["status"], new["status"]
    fails = (before in FAILS, after in FAILS)
    if fails == (False, True):
        return "added", True, f"{before}, now {after}"
    if fails == (True, True):
        return _another_failure(old, new)
    if fails == (True, False):
        gone = after in ("passed", "unexpected-pass")
        return ("fixed" if gone else "changed"), False, f"{before}, now {after}"
    if before != after:
        return "changed", _KNOWN[after] < _KNOWN[before], f"{before}, now {after}"
    change, nearer, how = _drift(old, new, ratio)
    return change, nearer and same_problems and old["examples"] == new["examples"], how


def _another_failure(old: Record, new: Record) -> tuple[Change, bool, str]:
    """What differs between two failures: their kinds, their diagnoses, whether they are expected.

    A failure that is announced now is no worse; one that is another, or announced no more, is.
    """
    told = [
        f"{name} {_shown(old[key])}, now {_shown(new[key])}"
        for key, name in (("status", "status"), ("kind", "kind"), ("diagnosis", "diagnosed as"))
        if old[key] != new[key]
    ]
    another = (old["kind"], old["diagnosis"]) != (new["kind"], new["diagnosis"])
    announced = new["status"] == "expected-failure"
    worse = another or (old["status"] != new["status"] and not announced)
    return ("changed" if told else "same"), worse, "; ".join(told)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " or ".join(value) or "nothing"
    return "none" if value is None else str(value)


def _drift(old: Record, new: Record, ratio: float) -> tuple[Change, bool, str]:
    """How far the largest error moved against its bound, where both records measured it."""
    before, after = _number(old["margin"]), _number(new["margin"])
    if new["status"] != "passed" or before is None or after is None:
        return "same", False, ""
    factor = max(PARTS * after, 1.0) / max(PARTS * before, 1.0)
    told = f"margin {before:.2g}, now {after:.2g}"
    if factor >= ratio:
        return "drift", True, f"{told} ({factor:.1f} times as near to the bound)"
    if factor <= 1.0 / ratio:
        return "drift", False, told
    return "same", False, ""


def _number(margin: Any) -> float | None:
    """A margin that is a number and finite."""
    number = None if margin is None else float(margin)
    return number if number is not None and math.isfinite(number) else None
