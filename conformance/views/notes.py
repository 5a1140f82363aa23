"""What a record says of itself beside verdicts: a limit, a shard, rounds, a fresh seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..base.limits import spoken

Record = Mapping[str, Any]


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
