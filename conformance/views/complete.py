"""A record with everything that views look at, also one that an older version wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ..base.printable import printable_record

Record = Mapping[str, Any]

_RECORD: Final[Record] = {
    "tool": {},
    "environment": {},
    "profile": "unknown",
    "seed": 0,
    "seconds": 0.0,
    "interrupted": False,
    "stale_expectations": [],
    "clauses": {},
    "candidates": [],
}
_CANDIDATE: Final[Record] = {
    "target": "",
    "kind": "candidate",
    "declaration": {},
    "verdict": "inconclusive",
    "verdict_reason": "",
    "warnings": [],
    "seconds": 0.0,
    "clauses": [],
}
_CLAUSE: Final[Record] = {
    "level": "MUST",
    "reason": "",
    "examples": 0,
    "binding": 0,
    "seconds": 0.0,
    "dtype": "float32",
    "device": "cpu",
    "margin": None,
    "violation": None,
    "counterexample": None,
    "diagnosis": [],
    "requirement": "",
}
_STALE: Final[Record] = {"clause": "", "candidate": "*", "reason": "", "why": ""}


def complete(record: Record) -> dict[str, Any]:
    """A copy with every key that views look at, and no text in it that upsets a terminal."""
    found: dict[str, Any] = printable_record(dict(record))
    return {
        **_RECORD,
        **found,
        "stale_expectations": [
            {**_STALE, **entry} for entry in found.get("stale_expectations") or ()
        ],
        "candidates": [_candidate(entry) for entry in found.get("candidates") or ()],
    }


def _candidate(entry: Record) -> dict[str, Any]:
    clauses = [_clause(clause) for clause in entry.get("clauses") or ()]
    counts = dict(Counter(clause["status"] for clause in clauses))
    return {**_CANDIDATE, "counts": counts, **entry, "clauses": clauses}


def _clause(entry: Record) -> dict[str, Any]:
    return {**_CLAUSE, "family": str(entry["id"]).partition(".")[0], **entry}
