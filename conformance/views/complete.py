"""A record with every key that views read, notes on the run, and candidates' places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..base.limits import left_over, spoken
from ..base.printable_text import printable_record
from .wording import counted

Record = Mapping[str, Any]

_RECORD: Final[Record] = {
    "tool": {},
    "environment": {},
    "profile": "unknown",
    "seed": 0,
    "seconds": 0.0,
    "interrupted": False,
    "clauses": {},
}
_CANDIDATE: Final[Record] = {
    "target": "",
    "kind": "candidate",
    "declaration": {},
    "verdict": "inconclusive",
    "verdict_reason": "",
    "warnings": [],
    "seconds": 0.0,
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
_FILES: Final = (".py", ".onnx")


def complete(record: Record) -> dict[str, Any]:
    """A copy with every key that views read, and only printable text."""
    copy: dict[str, Any] = printable_record(dict(record))
    stale = [{**_STALE, **entry} for entry in copy.get("stale_expectations") or ()]
    candidates = [_candidate(entry) for entry in copy.get("candidates") or ()]
    return {**_RECORD, **copy, "stale_expectations": stale, "candidates": candidates}


def _candidate(entry: Record) -> dict[str, Any]:
    clauses = [
        {**_CLAUSE, "family": str(clause["id"]).partition(".")[0], **clause}
        for clause in entry.get("clauses") or ()
    ]
    counts = dict(Counter(clause["status"] for clause in clauses))
    return {**_CANDIDATE, "counts": counts, **entry, "clauses": clauses}


def notes(record: Record) -> list[str]:
    """Return sentences on the making and the gaps of the run; most records need none."""
    runs = record.get("compared") or ()
    return [
        *([f"isolated: {record['isolated']}"] if record.get("isolated") else []),
        *_limit(record),
        *_stopped(record),
        *_shard(record),
        *_merged(record),
        *_explored(record),
        *(
            f"{run.get('source', 'a run')}: {note}"
            for run in runs
            for note in (*_limit(run), *_shard(run))
        ),
    ]


def is_cut(record: Record) -> bool:
    """Whether a time limit ended the run early: no verdict covers everything then."""
    return bool(_part(record, "limit").get("reached"))


def _part(record: Record, name: str) -> Record:
    part = record.get(name)
    return part if isinstance(part, Mapping) else {}


def _limit(record: Record) -> Iterator[str]:
    limit = _part(record, "limit")
    if not is_cut(record):
        return
    reached = f"the limit of {spoken(float(limit.get('seconds', 0.0)))} was reached"
    if not limit.get("loaded", True):
        targets = _part(record, "options").get("targets", [])
        yield f"{reached} before {', '.join(map(str, targets)) or 'anything'} was loaded"
        return
    clauses = left_over(limit.get("not_run", 0), limit.get("not_finished", 0))
    yield f"{reached}: {clauses}; the report names each of them"


def _stopped(record: Record) -> Iterator[str]:
    if stopped := _part(record, "stopped"):
        ran, planned = stopped.get("asked", 0), stopped.get("planned", 0)
        yield f"the run ended with its first failure: {ran} of {planned} clauses were run"


def _shard(record: Record) -> Iterator[str]:
    if shard := _part(record, "shard"):
        index, count = shard.get("index"), shard.get("count")
        yield (
            f"shard {index} of {count}: one in {count} examples of each clause; "
            f"'conformance merge' of all {count} gives the verdict"
        )


def _merged(record: Record) -> Iterator[str]:
    if shards := _part(record, "merged").get("shards"):
        yield f"merged from {shards} shards; seconds are those of all machines together"


def _explored(record: Record) -> Iterator[str]:
    if explored := _part(record, "explored"):
        yield (
            f"explored {explored.get('examples', 0)} further examples in "
            f"{counted(explored.get('rounds', 0), 'round')}; "
            f"--seed {record.get('seed')} draws the same ones in the same order"
        )


def file_of(candidate: Record) -> str:
    """The candidate's file with slashes, relative to the repository's root; "" if unknown.

    Records of older versions have no ``location``; their targets may still begin with a file.
    """
    location = candidate.get("location") or {}
    if location.get("file"):
        return str(location["file"])
    target = str(candidate.get("target") or "").replace("\\", "/")
    path, colon, _ = target.rpartition(":")
    file = path if colon and path.endswith(_FILES) else target
    return file if file.endswith(_FILES) else ""


def line_of(candidate: Record) -> int | None:
    """The line of the candidate in its file; None if unknown."""
    line = (candidate.get("location") or {}).get("line")
    return line if isinstance(line, int) and line > 0 else None
