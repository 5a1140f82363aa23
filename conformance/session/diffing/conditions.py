"""What else differs between two records: the specification, the surroundings, the declarations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

Record = Mapping[str, Any]
_SETTINGS: Final = ("schema", "profile", "seed", "interrupted")
_TABLES: Final = ("tool", "environment")
_LONGEST: Final = 120


def conditions(old: Record, new: Record) -> list[dict[str, Any]]:
    """The settings that differ, each with its old and its new value; None where it is not told."""
    before, after = dict(_settings(old)), dict(_settings(new))
    return [
        {"name": name, "old": before.get(name), "new": after.get(name)}
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def _settings(record: Record) -> Iterator[tuple[str, Any]]:
    for name in _SETTINGS:
        yield name, record.get(name)
    yield from _parts(record)
    for table in _TABLES:
        for name, value in (record.get(table) or {}).items():
            yield f"{table}.{name}", value


def _parts(record: Record) -> Iterator[tuple[str, str]]:
    """What makes a record less than a whole run: a limit that cut it, a shard."""
    limit, shard = record.get("limit") or {}, record.get("shard") or {}
    reached = f"reached after {limit.get('seconds')} s"
    yield "time limit", reached if limit.get("reached") else "not reached"
    yield "shard", f"{shard.get('index')} of {shard.get('count')}" if shard else "the whole run"


def same_problems(old: Record, new: Record) -> bool:
    """Whether both runs drew the same problems, as far as they tell."""
    settings = all(old.get(name) == new.get(name) for name in ("profile", "seed"))
    return settings and same_specification(old, new)


def same_specification(old: Record, new: Record) -> bool:
    """Whether both records know the same clauses, as far as they tell."""
    first, second = ((record.get("tool") or {}).get("specification") for record in (old, new))
    return bool(first == second)


def declarations(candidate: str, old: Record, new: Record) -> list[dict[str, Any]]:
    """The promises of a candidate that differ, shortened."""
    before, after = (entry.get("declaration") or {} for entry in (old, new))
    return [
        {
            "candidate": candidate,
            "name": name,
            "old": _short(before, name),
            "new": _short(after, name),
        }
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def _short(table: Record, name: str) -> str | None:
    if name not in table:
        return None
    text = json.dumps(table[name], ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
