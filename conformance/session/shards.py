"""The records of shards, checked to be all shards of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..base.profile import MOST, Shard
from ..base.record import Record, read_record
from ..errors import UsageError

# Packages that draw examples or influence answers must agree on all machines.
_VERSIONS: Final = ("torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """The record of one shard, with its file."""

    path: Path
    shard: Shard
    record: Record


def read_shards(paths: Sequence[Path]) -> list[ShardRecord]:
    """Read the shards of one run, in order.

    Raises UsageError with one sentence for a file that is no shard, for shards of different runs,
    and for shards missing, named twice or interrupted.
    """
    records = [_read(path) for path in paths]
    for record in records[1:]:
        _check_same(records[0], record)
    taken: dict[int, ShardRecord] = {}
    for record in records:
        other = taken.setdefault(record.shard.index, record)
        if other is not record:
            paths_text = f"{other.path} and {record.path}"
            msg = f"{paths_text} are both shard {record.shard}: give each shard once"
            raise UsageError(msg)
    count = records[0].shard.count
    missing = [str(number) for number in range(1, count + 1) if number not in taken]
    if missing:
        word = "shard" if len(missing) == 1 else "shards"
        msg = f"{word} {', '.join(missing)} of {count} missing: give the records of all {count}"
        raise UsageError(msg)
    return [taken[number] for number in sorted(taken)]


def _read(path: Path) -> ShardRecord:
    record = read_record(path)
    shard_entry = record.get("shard")
    if shard_entry is None:
        msg = f"{path} is no shard of a run: 'conformance check --shard I/N --json FILE' writes one"
        raise UsageError(msg)
    if not isinstance(shard_entry, Mapping) or not _is_shard(shard_entry):
        msg = f"{path} says it is the shard {shard_entry!r:.60}, which is none: was it edited?"
        raise UsageError(msg)
    if record.get("interrupted"):
        msg = f"{path} was interrupted before it was complete: run this shard again"
        raise UsageError(msg)
    shard = Shard(index=shard_entry["index"], count=shard_entry["count"])
    return ShardRecord(path=path, shard=shard, record=record)


def _is_shard(shard_entry: Mapping[str, Any]) -> bool:
    index, count = shard_entry.get("index"), shard_entry.get("count")
    whole = all(
        isinstance(number, int) and not isinstance(number, bool) for number in (index, count)
    )
    expected = shard_entry.get("expected", [])
    listed = isinstance(expected, list) and all(isinstance(entry, dict) for entry in expected)
    return whole and listed and 1 <= shard_entry["index"] <= shard_entry["count"] <= MOST


def _check_same(first: ShardRecord, other: ShardRecord) -> None:
    for name, fact_of in _facts():
        first_fact, other_fact = fact_of(first.record), fact_of(other.record)
        if first_fact != other_fact:
            msg = (
                f"{first.path} and {other.path} are no shards of one run: "
                f"{name} is {_short(first_fact)} in one and {_short(other_fact)} in the other"
            )
            raise UsageError(msg)
    both = [_names(shard.record) for shard in (first, other)]
    if all(both) and both[0] != both[1]:  # a shard whose time was up may have loaded none
        msg = f"{first.path} and {other.path} are no shards of one run: they list other candidates"
        raise UsageError(msg)


def _facts() -> Iterator[tuple[str, Callable[[Record], Any]]]:
    """Yield the facts common to shards of one run, the most important first."""
    yield "the number of shards", lambda record: record["shard"]["count"]
    yield "the version", lambda record: _in(record, "tool", "version")
    yield "the specification", lambda record: _in(record, "tool", "specification")
    yield "the profile", lambda record: record.get("profile")
    yield "the seed", lambda record: record.get("seed")
    names = ("targets", "dtypes", "devices", "only", "skip", "compile", "unchecked", "isolated")
    for name in names:
        yield f"the option for {name}", partial(_in, part="options", name=name)
    for name in _VERSIONS:
        yield f"the version of {name}", partial(_in, part="environment", name=name)
    yield "the version of python", _python
    yield "the file of expected failures", _expected


def _in(record: Record, part: str, name: str) -> Any:
    inside = record.get(part)
    return inside.get(name) if isinstance(inside, Mapping) else None


def _python(record: Record) -> str:
    """Return Python's version without the last part, which differs between hosted machines."""
    return str(_in(record, "environment", "python")).rpartition(".")[0]


def _expected(record: Record) -> list[dict[str, Any]]:
    """Return the entries of the file of expected failures, without their places."""
    place = ("file", "line")
    entries = record["shard"].get("expected", [])
    return [{key: entry[key] for key in entry if key not in place} for entry in entries]


def _names(record: Record) -> list[str]:
    return [candidate["name"] for candidate in record["candidates"]]


def _short(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 (a part of one line)
