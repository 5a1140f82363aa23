"""Reading a record back from its file; what is none is refused in one sentence."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from ..base.results import STATUSES
from ..errors import UsageError
from .report import SCHEMA

Record = Mapping[str, Any]

STANDARD_INPUT: Final = Path("-")
_NUMBER: Final = (int, float)
_MARGIN: Final = (int, float, str, type(None))  # a number that is not finite is a text
# What each level must have, and of what type; the rest may be missing, as in older records.
_NEEDED: Final[dict[str, dict[str, Any]]] = {
    "record": {"candidates": list},
    "candidate": {"name": str, "verdict": str, "clauses": list},
    "clause": {"id": str, "status": str},
    "stale expectation": {"clause": str},
}
_TYPES: Final[dict[str, dict[str, Any]]] = {
    "record": {
        "tool": dict,
        "environment": dict,
        "seconds": _NUMBER,
        "interrupted": bool,
        "clauses": dict,
        "stale_expectations": list,
        "options": dict,
        "shard": dict,
        "limit": dict,
        "merged": dict,
        "explored": dict,
    },
    "candidate": {
        "target": str,
        "kind": str,
        "declaration": dict,
        "coverage": dict,
        "location": dict,
        "verdict_reason": str,
        "warnings": list,
        "seconds": _NUMBER,
    },
    "clause": {
        "family": str,
        "level": str,
        "reason": str,
        "requirement": str,
        "examples": int,
        "binding": int,
        "seconds": _NUMBER,
        "dtype": str,
        "device": str,
        "margin": _MARGIN,
        "violation": (dict, type(None)),
        "counterexample": (dict, type(None)),
        "diagnosis": list,
    },
    "stale expectation": {"candidate": str, "reason": str, "why": str},
}


def read_record(path: Path) -> dict[str, Any]:
    """The record of ``conformance check`` in a file; ``-`` is standard input.

    Raises UsageError for what cannot be read, is no record, is one of ``conformance teeth``, or has
    a schema that this version does not know.
    """
    data = _parsed(path)
    if not isinstance(data, dict):
        _refuse(path, "it is no JSON object")
    if "mistakes" in data and "candidates" not in data:
        _refuse(path, "it is the record of conformance teeth, which writes its own pages")
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        msg = (
            f"{path} has schema {schema}, this version reads schema {SCHEMA}: "
            "read it with the version that wrote it, or a later one"
        )
        raise UsageError(msg)
    if schema != SCHEMA:
        _refuse(path, f"its schema is {schema!r}, not {SCHEMA}")
    for wrong in _wrong(data):
        _refuse(path, wrong)
    return data


def _parsed(path: Path) -> Any:
    try:
        if path == STANDARD_INPUT:
            return json.loads(sys.stdin.buffer.read().decode("utf-8-sig"))
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        msg = f"there is no report {path}: 'conformance check TARGET --json {path}' writes one"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"the report {path} cannot be read: {error.strerror or error}"
        raise UsageError(msg) from None
    except ValueError as error:
        msg = f"{path} is no JSON: {error}"
        raise UsageError(msg) from None
    except RecursionError:
        msg = f"{path} is no report: its JSON is nested too deeply"
        raise UsageError(msg) from None


def _refuse(path: Path, why: str) -> NoReturn:
    msg = f"{path} is no report of conformance check: {why}"
    raise UsageError(msg)


def _wrong(record: Record) -> Iterator[str]:
    """What a record lacks or has of another type, in words, from the outside in."""
    yield from _of(record, "record", "it")
    for slug, told in record.get("clauses", {}).items():
        if not isinstance(told, dict):
            yield f"{slug!r} of its 'clauses' is {json.dumps(told)[:40]}"
    for number, entry in enumerate(record.get("stale_expectations", []), 1):
        yield from _of(entry, "stale expectation", f"its stale expectation {number}")
    for number, candidate in enumerate(record["candidates"], 1):
        whose = f"its candidate {number}"
        yield from _of(candidate, "candidate", whose)
        for place, clause in enumerate(candidate["clauses"], 1):
            yield from _of(clause, "clause", f"clause {place} of {whose}")
            yield from _of_clause(clause, f"clause {place} of {whose}")


def _of(data: Any, level: str, who: str) -> Iterator[str]:
    if not isinstance(data, dict):
        yield f"{who} is no object"
        return
    for name, kind in (_NEEDED[level] | _TYPES[level]).items():
        if name not in data:
            if name in _NEEDED[level]:
                yield f"{who} has no {name!r}"
        elif not _is(data[name], kind):
            yield f"{name!r} of {who} is {json.dumps(data[name])[:40]}"


def _is(value: Any, kind: Any) -> bool:
    """Whether a value has a type: True is no number, and neither are NaN and infinity."""
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kind)


def _of_clause(clause: Record, who: str) -> Iterator[str]:
    """What views go on to look at inside a clause."""
    if clause["status"] not in STATUSES:
        yield f"the status of {who} is {clause['status']!r}"
    violation = clause.get("violation")
    if violation is not None and not isinstance(violation.get("message"), str):
        yield f"the violation of {who} has no message"
    if not all(isinstance(entry, dict) for entry in clause.get("diagnosis", [])):
        yield f"the diagnosis of {who} is no list of objects"
    margin = clause.get("margin")
    if isinstance(margin, str) and margin not in ("nan", "inf", "-inf"):
        yield f"the margin of {who} is {margin!r}"
