"""Several runs as one record: candidates of records that were written apart, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..base.record import SCHEMA, TOOL, CandidateEntry, Record, read_record
from ..errors import UsageError

RECORD_SUFFIX: Final = ".json"
JUST_NOW: Final = "this run"
# What a run was, kept for each of them: whoever compares must know what was not the same.
_CIRCUMSTANCES: Final = (
    *("profile", "seed", "seconds", "started", "interrupted", "fail_on"),
    *("limit", "shard", "options"),
)


@dataclass(frozen=True, kw_only=True)
class ComparedRecord:
    """A record and what it is called on the page: the file, or :data:`JUST_NOW`."""

    name: str
    record: Record


def split(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """The targets among the arguments, and the files of records, whose names end in ``.json``."""
    targets = tuple(argument for argument in arguments if not argument.endswith(RECORD_SUFFIX))
    files = tuple(Path(argument) for argument in arguments if argument.endswith(RECORD_SUFFIX))
    return targets, files


def read_sources(files: Iterable[Path]) -> list[ComparedRecord]:
    """The records of some files, each once; raises UsageError for what is none."""
    sources: dict[Path, ComparedRecord] = {}
    for path in files:
        if path.resolve() in sources:
            msg = f"{path} is named twice: compare it with another record"
            raise UsageError(msg)
        sources[path.resolve()] = ComparedRecord(name=str(path), record=read_record(path))
    return list(sources.values())


def joined(sources: Sequence[ComparedRecord]) -> Record:
    """One record of schema 1 with the candidates of all sources, under names that differ.

    ``compared`` says of each source what it was. What is the same in all of them stands where a
    record has it; where they differ, the values are listed in one text.
    """
    records = [source.record for source in sources]
    names = _names(sources)
    seeds = list(dict.fromkeys(record.get("seed") for record in records))
    return {
        "schema": SCHEMA,
        "tool": _common([_mapping(record.get("tool")) for record in records])
        or {"name": TOOL, "version": "", "specification": ""},
        "environment": _common([_mapping(record.get("environment")) for record in records]),
        "profile": _listed(record.get("profile", "") for record in records),
        "seed": seeds[0] if len(seeds) == 1 else _listed(seeds),
        "seconds": sum(record.get("seconds") or 0.0 for record in records),
        "interrupted": any(bool(record.get("interrupted")) for record in records),
        "stale_expectations": [
            entry for record in records for entry in record.get("stale_expectations") or ()
        ],
        "clauses": {
            slug: facts
            for record in records
            for slug, facts in _mapping(record.get("clauses")).items()
        },
        "compared": [_circumstances(source) for source in sources],
        "candidates": list(_candidates(sources, names)),
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _common(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every key of several mappings; values that differ in one text."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return {key: _same_or_listed([m[key] for m in mappings if key in m]) for key in keys}


def _same_or_listed(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else _listed(values)


def _listed(values: Iterable[Any]) -> str:
    return " / ".join(dict.fromkeys(str(value) for value in values))


def _circumstances(source: ComparedRecord) -> dict[str, Any]:
    record = source.record
    return {
        "source": source.name,
        **{name: record[name] for name in _CIRCUMSTANCES if name in record},
        "tool": dict(_mapping(record.get("tool"))),
        "environment": dict(_mapping(record.get("environment"))),
        "candidates": len(record["candidates"]),
    }


def _names(sources: Sequence[ComparedRecord]) -> list[list[str]]:
    """A name for each candidate of each source, with its source where another has the same."""
    every = [
        [str(candidate["name"]) for candidate in source.record["candidates"]] for source in sources
    ]
    often = Counter(name for names in every for name in names)
    taken: Counter[str] = Counter()
    unique_names = []
    for source, names in zip(sources, every, strict=True):
        own = [name if often[name] == 1 else f"{name} ({source.name})" for name in names]
        unique_names.append([_unique(name, taken) for name in own])
    return unique_names


def _unique(name: str, taken: Counter[str]) -> str:
    taken[name] += 1
    return name if taken[name] == 1 else f"{name} {taken[name]}"


def _candidates(
    sources: Sequence[ComparedRecord], names: Sequence[Sequence[str]]
) -> Iterator[CandidateEntry]:
    for source, own in zip(sources, names, strict=True):
        for candidate, name in zip(source.record["candidates"], own, strict=True):
            yield {**candidate, "name": name, "source": source.name}
