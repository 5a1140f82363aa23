"""A profile that explores goes on with fresh examples for as long as there is time.

The examples of the first round are those of any run. What a later round shows is added to them:
where the time is up in the middle of one, nothing is missing.
"""

from __future__ import annotations

from typing import Any, Final

from ..base.results import ClauseResult

# What is asked again: the others have failed already, or say nothing whatever is asked.
WORTH_ASKING: Final = ("passed", "untestable")


def worth_asking(result: ClauseResult) -> bool:
    """Whether fresh examples may tell more of a clause."""
    return result.status in WORTH_ASKING and result.planned is None and result.examples > 0


def combined(before: ClauseResult, more: ClauseResult) -> ClauseResult:
    """What a clause showed so far with what another round showed."""
    margins = [one for one in (before.margin, more.margin) if one is not None]
    counted: dict[str, Any] = {
        "examples": before.examples + more.examples,
        "binding": before.binding + more.binding,
        "margin": max(margins) if margins else None,
        "seconds": before.seconds + more.seconds,
        "trail": _trail(before, more),
        "planned": before.planned,
    }
    if more.status in ("failed", "error"):
        return more.replace(**counted)
    if before.status == "untestable" and more.status == "passed":
        return before.replace(**counted, status="passed", reason="")
    return before.replace(**counted)


def _trail(before: ClauseResult, more: ClauseResult) -> dict[str, Any] | None:
    """A shard's trail with the sums of its later rounds, which no other shard has asked."""
    if before.trail is None:
        return None
    known = before.trail.get("explored") or {"examples": 0, "binding": 0, "margin": None}
    margins = [one for one in (known["margin"], more.margin) if one is not None]
    return {
        **before.trail,
        "explored": {
            "examples": known["examples"] + more.examples,
            "binding": known["binding"] + more.binding,
            "margin": max(margins) if margins else None,
            "failed": more.status == "failed",
        },
    }
