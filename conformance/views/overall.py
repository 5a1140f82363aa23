"""One word for a whole run: what every candidate's verdict and the expectations amount to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .notes import is_cut, notes

GREEN: Final = ("conforms", "conforms-with-deviations", "conforms-up-to-gauge")
# The first of these that a candidate has is the run's.
_WORST_FIRST: Final = ("error", "fails", "inconclusive")

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Overall:
    """The word for a run, why, and whether a gate lets it through."""

    word: str
    reason: str
    green: bool


def overall(record: Record) -> Overall:
    """What a run amounts to: an interrupted, an empty or an unfinished one is never green."""
    candidates = record["candidates"]
    if record.get("interrupted"):
        reason = "the run was interrupted: the record holds what was done before"
        return Overall(word="interrupted", reason=reason, green=False)
    if not candidates:
        reason = notes(record)[0] if is_cut(record) else "nothing was checked"
        return Overall(word="inconclusive", reason=reason, green=False)
    verdicts = [str(candidate.get("verdict", "inconclusive")) for candidate in candidates]
    for word in _WORST_FIRST:
        if word in verdicts:
            return Overall(word=word, reason=_who(word, candidates), green=False)
    stale = record.get("stale_expectations") or ()
    if stale:
        reason = f"{counted(len(stale), 'expected failure')} nothing answers to any more"
        return Overall(word="fails", reason=reason, green=False)
    if is_cut(record):
        return Overall(word="inconclusive", reason=notes(record)[0], green=False)
    green = all(word in GREEN for word in verdicts)
    word = max(verdicts, key=lambda one: GREEN.index(one) if green else one not in GREEN)
    return Overall(word=word, reason=_sum(verdicts), green=green)


def _who(word: str, candidates: Sequence[Record]) -> str:
    """Who has the verdict, and of a single candidate why."""
    if len(candidates) == 1:
        return str(candidates[0].get("verdict_reason") or "")
    names = [str(one["name"]) for one in candidates if one.get("verdict") == word]
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""  # noqa: PLR2004
    shown = ", ".join(names[:3] if more else names)
    return f"{len(names)} of {len(candidates)} candidates: {shown}{more}"


def _sum(verdicts: Sequence[str]) -> str:
    """How many candidates have which verdict."""
    words = dict.fromkeys(verdicts)
    told = ", ".join(f"{verdicts.count(word)} {word}" for word in words)
    return f"{counted(len(verdicts), 'candidate')}: {told}"


def counted(number: int, noun: str) -> str:
    """``1 candidate``, ``2 candidates``."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"
