r"""A record made whole for pages: what older records lack gets a value, and texts are harmless.

Pages then need no case for a missing key, and no text can hold control characters, lone surrogates
or marks that turn the direction of writing: they arrive as escapes such as ``\x1b``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..printable import printable_record

Record = dict[str, Any]

_RUN: Final[Record] = {
    "profile": "",
    "seed": None,
    "seconds": None,
    "interrupted": False,
    "environment": {},
    "stale_expectations": [],
}
_CANDIDATE: Final[Record] = {
    "target": "",
    "kind": "",
    "declaration": {},
    "verdict": "inconclusive",
    "verdict_reason": "",
    "warnings": [],
    "seconds": None,
}
_CLAUSE: Final[Record] = {
    "level": "MUST",
    "reason": "",
    "examples": 0,
    "binding": 0,
    "seconds": None,
    "dtype": "",
    "device": "cpu",
    "margin": None,
    "violation": None,
    "counterexample": None,
    "diagnosis": [],
    "blame": None,
    "requirement": "",
}
_VIOLATION: Final[Record] = {"kind": "", "message": "", "measured": {}, "where": []}


def complete(record: Mapping[str, Any]) -> Record:
    """The same record with every key that pages look at; the given one stays as it is."""
    made: Record = filled(_RUN, printable_record(dict(record)))
    tool = {"name": "attention-conformance", "version": "", "specification": ""}
    made["tool"] = filled(tool, made.get("tool"))
    made["candidates"] = [_candidate(entry) for entry in made.get("candidates") or ()]
    return made


def _candidate(entry: Record) -> Record:
    made = filled(_CANDIDATE, entry)
    made["clauses"] = [_clause(clause) for clause in made.get("clauses") or ()]
    return made


def _clause(entry: Record) -> Record:
    made = filled(_CLAUSE, entry)
    made.setdefault("family", str(made["id"]).partition(".")[0])
    made["margin"] = number(made["margin"])
    if made["violation"] is not None:
        made["violation"] = filled(_VIOLATION, made["violation"])
    return made


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
