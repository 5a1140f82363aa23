"""A record with everything that views look at, what it says of itself, and where candidates are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from ..base.limits import spoken
from ..base.texts import printable_record

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


def notes(record: Record) -> list[str]:
    """Sentences on how the run was made and what it lacks; none of most records."""
    own = (*_limit(record), *_shard(record), *_merged(record), *_explored(record))
    return [*own, *_compared(record)]


def is_cut(record: Record) -> bool:
    """Whether a time limit ended the run before everything was asked: no verdict is whole then."""
    return bool(_part(record, "limit").get("reached"))


def _part(record: Record, name: str) -> Record:
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}


def _limit(record: Record) -> Iterator[str]:
    limit = _part(record, "limit")
    if not is_cut(record):
        return
    told = f"the limit of {spoken(float(limit.get('seconds', 0.0)))} was reached"
    if not limit.get("loaded", True):
        targets = _part(record, "options").get("targets", [])
        yield f"{told} before {', '.join(map(str, targets)) or 'anything'} was loaded"
        return
    not_run, not_finished = limit.get("not_run", 0), limit.get("not_finished", 0)
    clauses = "1 clause was" if not_run == 1 else f"{not_run} clauses were"
    more = f", {not_finished} not to the end" if not_finished else ""
    yield f"{told}: {clauses} not run{more}; the report names each of them"


def _shard(record: Record) -> Iterator[str]:
    shard = _part(record, "shard")
    if shard:
        index, count = shard.get("index"), shard.get("count")
        yield (
            f"shard {index} of {count}: one in {count} examples of each clause; "
            f"'conformance merge' of all {count} gives the verdict"
        )


def _merged(record: Record) -> Iterator[str]:
    if shards := _part(record, "merged").get("shards"):
        yield f"merged from {shards} shards; seconds are those of all machines together"


def _explored(record: Record) -> Iterator[str]:
    explored = _part(record, "explored")
    if explored:
        rounds = explored.get("rounds", 0)
        word = "round" if rounds == 1 else "rounds"
        yield (
            f"explored {explored.get('examples', 0)} further examples in {rounds} {word}; "
            f"--seed {record.get('seed')} draws the same ones in the same order"
        )


def _compared(record: Record) -> Iterator[str]:
    """What each run of a comparison lacks."""
    for run in record.get("compared") or ():
        for note in (*_limit(run), *_shard(run)):
            yield f"{run.get('source', 'a run')}: {note}"


_FILES: Final = (".py", ".onnx")


def file_of(candidate: Record) -> str:
    """The candidate's file with slashes, from the repository's root; "" where none is known.

    Records of older versions have no ``location``; their targets may still begin with a file.
    """
    location = candidate.get("location") or {}
    if location.get("file"):
        return str(location["file"])
    target = str(candidate.get("target") or "").replace("\\", "/")
    path, colon, _ = target.rpartition(":")
    found = path if colon and path.endswith(_FILES) else target
    return found if found.endswith(_FILES) else ""


def line_of(candidate: Record) -> int | None:
    """The line there, None where it is not known."""
    line = (candidate.get("location") or {}).get("line")
    return line if isinstance(line, int) and line > 0 else None


def uri_of(file: str) -> str:
    """A path as a reference of RFC 3986: relative, or a ``file:`` URI of an absolute one."""
    if file.startswith("/"):
        return f"file://{quote(file)}"
    if file[1:3] == ":/":  # a drive
        return f"file:///{file[:2]}{quote(file[2:])}"
    return quote(file)
