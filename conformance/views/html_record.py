"""A completed record as pages want it: nulls count as missing, margins are numbers.

Pages then need no case for what a record may lack or have as null.
"""

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
