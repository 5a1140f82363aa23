"""Several records: joined side by side, or the difference between two.

The difference is data for views, and says whether anything got worse.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..base.record import CHOSEN, GREEN, SCHEMA, TOOL, CandidateEntry, Record, read_record
from ..errors import UsageError

# A record, or a part of one.
Entry = Mapping[str, Any]
SECTIONS: Final = ("added", "changed", "drift", "fixed")
_RANKS: Final = {**dict.fromkeys(GREEN, 0), "inconclusive": 1, "fails": 2, "error": 3}

Key = tuple[Any, ...]


def difference(old: Entry, new: Entry, *, ratio: float = 2.0) -> dict[str, Any]:
    """Return the changes from the old record to the new one, as JSON data.

    ``added``, ``changed``, ``drift`` and ``fixed`` list clauses with both sides; ``came`` and
    ``went`` candidates and clauses of only one record; ``verdicts``, ``expectations``,
    ``declarations`` and ``conditions`` the rest. Each entry says whether it is ``worse``; a margin
    drifts if its distance to the bound changes by the factor ``ratio``.
    """
    before, after = _by_name(old), _by_name(new)
    changes: dict[str, Any] = {
        "schema": SCHEMA,
        "worse": False,
        "ratio": ratio,
        "conditions": conditions(old, new),
        "declarations": [],
        "verdicts": [],
        "expectations": _expectations(old, new),
        **{section: [] for section in SECTIONS},
        "came": [_candidate(name, after[name], came=True) for name in after if name not in before],
        "went": [
            _candidate(name, before[name], came=False) for name in before if name not in after
        ],
        "same": 0,
    }
    same = {"problems": same_problems(old, new), "clauses": same_specification(old, new)}
    for name in [name for name in before if name in after]:
        _compare(changes, name, before[name], after[name], ratio=ratio, same=same)
    listed = (*SECTIONS, "came", "went", "verdicts", "expectations")
    changes["worse"] = any(entry["worse"] for section in listed for entry in changes[section])
    return changes


def _compare(
    changes: dict[str, Any],
    name: str,
    old: Entry,
    new: Entry,
    *,
    ratio: float,
    same: Mapping[str, bool],
) -> None:
    changes["declarations"].extend(declarations(name, old, new))
    changes["verdicts"].extend(_verdict(name, old, new))
    before, after = _by_condition(old), _by_condition(new)
    for key, clause in after.items():
        if key not in before:
            changes["came"].append(_came(name, clause))
            continue
        sides = side(before[key]), side(clause)
        change, worse, how = compared(*sides, ratio=ratio, same_problems=same["problems"])
        if change == "same":
            changes["same"] += 1
            continue
        entry = {**_where(name, clause), "old": sides[0], "new": sides[1]}
        changes[change].append({**entry, "worse": worse, "how": how})
    for key, clause in before.items():
        if key not in after:
            changes["went"].append(_went(name, clause, same_clauses=same["clauses"]))


def _by_name(record: Entry) -> dict[str, Entry]:
    """Return the candidates by name; repeated names get a number."""
    counted = _counted(((entry["name"],), entry) for entry in record["candidates"])
    return {
        name if number == 1 else f"{name} ({number})": entry
        for (name, number), entry in counted.items()
    }


def _by_condition(candidate: Entry) -> dict[Key, Entry]:
    return _counted(
        ((clause["id"], clause.get("dtype"), clause.get("device", "cpu")), clause)
        for clause in candidate["clauses"]
    )


def _counted(entries: Iterable[tuple[Key, Entry]]) -> dict[Key, Entry]:
    """Number entries of equal keys, so that none is lost."""
    counts: Counter[Key] = Counter()
    numbered = {}
    for key, entry in entries:
        counts[key] += 1
        numbered[(*key, counts[key])] = entry
    return numbered


def _where(name: str, clause: Entry) -> dict[str, Any]:
    return {
        "candidate": name,
        "clause": clause["id"],
        "level": clause.get("level", ""),
        "dtype": clause.get("dtype", ""),
        "device": clause.get("device", ""),
    }


def _came(name: str, clause: Entry) -> dict[str, Any]:
    """Describe a clause only the new record has; worse if it fails."""
    compared_side = side(clause)
    return {**_where(name, clause), "new": compared_side, "worse": compared_side["status"] in FAILS}


def _went(name: str, clause: Entry, *, same_clauses: bool) -> dict[str, Any]:
    """Describe a clause only the old record has; worse if it held and still exists."""
    compared_side = side(clause)
    worse = same_clauses and compared_side["status"] == "passed"
    return {**_where(name, clause), "old": compared_side, "worse": worse}


def _candidate(name: str, entry: Entry, *, came: bool) -> dict[str, Any]:
    """Describe a candidate of one record alone; worse if a red one comes or a green one goes."""
    green = entry.get("verdict") in GREEN
    return {
        "candidate": name,
        "clause": None,
        "verdict": entry.get("verdict", ""),
        "verdict_reason": entry.get("verdict_reason", ""),
        "worse": green != came,
    }


def _verdict(name: str, old: Entry, new: Entry) -> list[dict[str, Any]]:
    before, after = str(old.get("verdict")), str(new.get("verdict"))
    worst = max(_RANKS.values())
    worse = _RANKS.get(after, worst) > _RANKS.get(before, worst)
    reason = new.get("verdict_reason", "")
    entry = {"candidate": name, "old": before, "new": after, "reason": reason, "worse": worse}
    return [entry] if before != after else []


def _expectations(old: Entry, new: Entry) -> list[dict[str, Any]]:
    """Return the stale expectations found in only one of the two records."""
    before, after = (
        {
            (entry.get("clause"), entry.get("candidate"), entry.get("problem", "stale")): entry
            for entry in record.get("stale_expectations") or ()
        }
        for record in (old, new)
    )
    came = [(key, entry, True) for key, entry in after.items() if key not in before]
    went = [(key, entry, False) for key, entry in before.items() if key not in after]
    return [
        {
            "clause": key[0],
            "candidate": key[1],
            "problem": key[2],
            "why": entry.get("why", ""),
            "worse": worse,
        }
        for key, entry, worse in (*came, *went)
    ]


Change = Literal["added", "fixed", "changed", "drift", "same"]
FAILS: Final = ("failed", "expected-failure", "error")
# Statuses ordered by how much is known to hold, from nothing to everything.
_KNOWN: Final = {"untestable": 0, "not-applicable": 1, "unexpected-pass": 2, "passed": 3}
# Below a hundredth of its bound a margin is rounding: it counts as a hundredth.
PARTS: Final = 100


def side(clause: Entry) -> dict[str, Any]:
    """The part of a clause's entry that is compared."""
    violation = clause.get("violation") or {}
    return {
        "status": clause["status"],
        "kind": violation.get("kind"),
        "diagnosis": [str(entry.get("name")) for entry in clause.get("diagnosis") or ()],
        "margin": clause.get("margin"),
        "examples": clause.get("examples"),
        "message": str(violation.get("message") or clause.get("reason") or ""),
    }


def compared(
    old: Entry, new: Entry, *, ratio: float, same_problems: bool = True
) -> tuple[Change, bool, str]:
    """Return the change of a clause, whether it is worse, and in which way.

    Margins depend on the drawn problems: without ``same_problems``, or with unequal numbers of
    examples, a drift of the margin is reported, but is no worse.
    """
    before, after = old["status"], new["status"]
    fails = (before in FAILS, after in FAILS)
    if fails == (False, True):
        return "added", True, f"{before}, now {after}"
    if fails == (True, True):
        return _another_failure(old, new)
    if fails == (True, False):
        gone = after in ("passed", "unexpected-pass")
        return ("fixed" if gone else "changed"), False, f"{before}, now {after}"
    if before != after:
        return "changed", _KNOWN[after] < _KNOWN[before], f"{before}, now {after}"
    change, nearer, how = _drift(old, new, ratio)
    return change, nearer and same_problems and old["examples"] == new["examples"], how


def _another_failure(old: Entry, new: Entry) -> tuple[Change, bool, str]:
    """Compare two failures: kind, diagnosis, and whether they are expected.

    A failure announced now is no worse; a different failure, or one no longer announced, is.
    """
    differences = [
        f"{name} {_shown(old[key])}, now {_shown(new[key])}"
        for key, name in (("status", "status"), ("kind", "kind"), ("diagnosis", "diagnosed as"))
        if old[key] != new[key]
    ]
    another = (old["kind"], old["diagnosis"]) != (new["kind"], new["diagnosis"])
    announced = new["status"] == "expected-failure"
    worse = another or (old["status"] != new["status"] and not announced)
    return ("changed" if differences else "same"), worse, "; ".join(differences)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " or ".join(value) or "nothing"
    return "none" if value is None else str(value)


def _drift(old: Entry, new: Entry, ratio: float) -> tuple[Change, bool, str]:
    """Return the change of the largest error against the bound, if both records have it."""
    before, after = _number(old["margin"]), _number(new["margin"])
    if new["status"] != "passed" or before is None or after is None:
        return "same", False, ""
    factor = max(PARTS * after, 1.0) / max(PARTS * before, 1.0)
    margins = f"margin {before:.2g}, now {after:.2g}"
    if factor >= ratio:
        return "drift", True, f"{margins} ({factor:.1f} times as near to the bound)"
    if factor <= 1.0 / ratio:
        return "drift", False, margins
    return "same", False, ""


def _number(margin: Any) -> float | None:
    number = None if margin is None else float(margin)
    return number if number is not None and math.isfinite(number) else None


_SETTINGS: Final = ("schema", "profile", "seed", "interrupted")
_TABLES: Final = ("tool", "environment")
_LONGEST: Final = 120


def conditions(old: Entry, new: Entry) -> list[dict[str, Any]]:
    """Return the differing settings with old and new values, None if missing."""
    before, after = dict(_settings(old)), dict(_settings(new))
    return [
        {"name": name, "old": before.get(name), "new": after.get(name)}
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def _settings(record: Entry) -> Iterator[tuple[str, Any]]:
    for name in _SETTINGS:
        yield name, record.get(name)
    yield from _parts(record)
    for table in _TABLES:
        for name, value in (record.get(table) or {}).items():
            yield f"{table}.{name}", value


def _parts(record: Entry) -> Iterator[tuple[str, str | None]]:
    """Yield selection, limit and shard: a record may be less than a whole run."""
    for name, option in CHOSEN.items():
        yield option, ", ".join(map(str, (record.get("options") or {}).get(name) or ())) or None
    limit, shard = record.get("limit") or {}, record.get("shard") or {}
    reached = f"reached after {limit.get('seconds')} s"
    yield "time limit", reached if limit.get("reached") else "not reached"
    yield "shard", f"{shard.get('index')} of {shard.get('count')}" if shard else "the whole run"


def same_problems(old: Entry, new: Entry) -> bool:
    """Tell whether both runs drew the same problems, as far as recorded."""
    settings = all(old.get(name) == new.get(name) for name in ("profile", "seed"))
    return settings and same_specification(old, new)


def same_specification(old: Entry, new: Entry) -> bool:
    """Tell whether both records have the same specification, as far as recorded."""
    first, second = ((record.get("tool") or {}).get("specification") for record in (old, new))
    return bool(first == second)


def declarations(candidate: str, old: Entry, new: Entry) -> list[dict[str, Any]]:
    """The promises of a candidate that differ, shortened."""
    before, after = (entry.get("declaration") or {} for entry in (old, new))
    return [
        {
            "candidate": candidate,
            "name": name,
            "old": _shortened(before, name),
            "new": _shortened(after, name),
        }
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def _shortened(table: Entry, name: str) -> str | None:
    if name not in table:
        return None
    text = json.dumps(table[name], ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


RECORD_SUFFIX: Final = ".json"
JUST_NOW: Final = "this run"
# A run's circumstances, kept for each source: a comparison must know the differences.
_CIRCUMSTANCES: Final = (
    *("profile", "seed", "seconds", "started", "interrupted", "fail_on"),
    *("limit", "shard", "options"),
)


@dataclass(frozen=True, kw_only=True)
class ComparedRecord:
    """A record and its name on the page: the file, or :data:`JUST_NOW`."""

    name: str
    record: Record


def split(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """The targets among the arguments, and the files of records, whose names end in ``.json``."""
    targets = tuple(argument for argument in arguments if not argument.endswith(RECORD_SUFFIX))
    files = tuple(Path(argument) for argument in arguments if argument.endswith(RECORD_SUFFIX))
    return targets, files


def read_sources(files: Iterable[Path]) -> list[ComparedRecord]:
    """Read the records of files; raises UsageError for repeated or invalid files."""
    sources: dict[Path, ComparedRecord] = {}
    for path in files:
        if path.resolve() in sources:
            msg = f"{path} is named twice: compare it with another record"
            raise UsageError(msg)
        sources[path.resolve()] = ComparedRecord(name=str(path), record=read_record(path))
    return list(sources.values())


def joined(sources: Sequence[ComparedRecord]) -> Record:
    """Join the candidates of all sources in one record of schema 1, under distinct names.

    ``compared`` describes each source. Facts common to all sources have their usual place;
    differing values are listed in one text.
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
    """Merge the mappings; differing values are listed in one text."""
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
    """Name the candidates of all sources, adding the source to ambiguous names."""
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
