"""Two records against each other, candidate by candidate and clause by clause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...base.record import GREEN
from .clauses import FAILS, Record, compared, side
from .conditions import conditions, declarations, same_problems, same_specification

SCHEMA: Final = 1
SECTIONS: Final = ("added", "changed", "drift", "fixed")
_RANKS: Final = {**dict.fromkeys(GREEN, 0), "inconclusive": 1, "fails": 2, "error": 3}

Key = tuple[Any, ...]


def difference(old: Record, new: Record, *, ratio: float = 2.0) -> dict[str, Any]:
    """What changed from the old record to the new one, as data that JSON can hold.

    ``added``, ``changed``, ``drift`` and ``fixed`` list clauses with both sides; ``came`` and
    ``went`` candidates and clauses that only one record has; ``verdicts``, ``expectations``,
    ``declarations`` and ``conditions`` the rest. Each entry says whether it is ``worse``; a margin
    drifts when it is ``ratio`` times as near to the bound, or as far from it.
    """
    before, after = _by_name(old), _by_name(new)
    found: dict[str, Any] = {
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
        _compare(found, name, before[name], after[name], ratio=ratio, same=same)
    listed = (*SECTIONS, "came", "went", "verdicts", "expectations")
    found["worse"] = any(entry["worse"] for section in listed for entry in found[section])
    return found


def _compare(
    found: dict[str, Any],
    name: str,
    old: Record,
    new: Record,
    *,
    ratio: float,
    same: Mapping[str, bool],
) -> None:
    """Add what became of one candidate to what is found."""
    found["declarations"].extend(declarations(name, old, new))
    found["verdicts"].extend(_verdict(name, old, new))
    before, after = _by_condition(old), _by_condition(new)
    for key, clause in after.items():
        if key not in before:
            found["came"].append(_came(name, clause))
            continue
        sides = side(before[key]), side(clause)
        change, worse, how = compared(*sides, ratio=ratio, same_problems=same["problems"])
        if change == "same":
            found["same"] += 1
            continue
        entry = {**_where(name, clause), "old": sides[0], "new": sides[1]}
        found[change].append({**entry, "worse": worse, "how": how})
    for key, clause in before.items():
        if key not in after:
            found["went"].append(_went(name, clause, same_clauses=same["clauses"]))


def _by_name(record: Record) -> dict[str, Record]:
    """The candidates by name; of several that have one name the later ones get a number."""
    counted = _counted(((entry["name"],), entry) for entry in record["candidates"])
    return {
        name if number == 1 else f"{name} ({number})": entry
        for (name, number), entry in counted.items()
    }


def _by_condition(candidate: Record) -> dict[Key, Record]:
    """The clauses of a candidate by slug, dtype and device."""
    return _counted(
        ((clause["id"], clause.get("dtype"), clause.get("device", "cpu")), clause)
        for clause in candidate["clauses"]
    )


def _counted(entries: Iterable[tuple[Key, Record]]) -> dict[Key, Record]:
    """Entries by key and how many have had the same: none is lost."""
    seen: Counter[Key] = Counter()
    found = {}
    for key, entry in entries:
        seen[key] += 1
        found[(*key, seen[key])] = entry
    return found


def _where(name: str, clause: Record) -> dict[str, Any]:
    return {
        "candidate": name,
        "clause": clause["id"],
        "level": clause.get("level", ""),
        "dtype": clause.get("dtype", ""),
        "device": clause.get("device", ""),
    }


def _came(name: str, clause: Record) -> dict[str, Any]:
    """A clause that only the new record has; worse where it fails."""
    told = side(clause)
    return {**_where(name, clause), "new": told, "worse": told["status"] in FAILS}


def _went(name: str, clause: Record, *, same_clauses: bool) -> dict[str, Any]:
    """A clause that only the old record has; worse where it held and still exists."""
    told = side(clause)
    worse = same_clauses and told["status"] == "passed"
    return {**_where(name, clause), "old": told, "worse": worse}


def _candidate(name: str, entry: Record, *, came: bool) -> dict[str, Any]:
    """A candidate that only one record has; worse when a red one comes or a green one goes."""
    green = entry.get("verdict") in GREEN
    return {
        "candidate": name,
        "clause": None,
        "verdict": entry.get("verdict", ""),
        "verdict_reason": entry.get("verdict_reason", ""),
        "worse": green != came,
    }


def _verdict(name: str, old: Record, new: Record) -> list[dict[str, Any]]:
    before, after = str(old.get("verdict")), str(new.get("verdict"))
    worst = max(_RANKS.values())
    worse = _RANKS.get(after, worst) > _RANKS.get(before, worst)
    reason = new.get("verdict_reason", "")
    entry = {"candidate": name, "old": before, "new": after, "reason": reason, "worse": worse}
    return [entry] if before != after else []


def _expectations(old: Record, new: Record) -> list[dict[str, Any]]:
    """The expectations that do not hold in one of the records only."""
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
