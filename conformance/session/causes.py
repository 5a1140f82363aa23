"""What failed, grouped by cause: one mistake that fails many clauses is said once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..base.mistake import UNKNOWN
from ..base.record import CauseEntry, ClauseEntry

_SIZES: Final = ("batch", "num_heads", "query_length", "key_length", "head_size", "value_head_size")
_NONE: Final[Mapping[str, Any]] = {}


def causes_of(clauses: Iterable[ClauseEntry]) -> list[CauseEntry]:
    """The causes behind the failed clauses of one candidate, those that fail most of them first.

    Each failure is in exactly one cause:

    1. Failures whose diagnoses share a name have one cause. Where several names would do, as few
       causes are taken as explain all of them. A failure that a mistake was seen to explain,
       although its own diagnosis has no name (``explained_by``), has that cause, too.
    2. Failures that no known mistake explains are one cause, ``unknown-mistake``.
    3. Exceptions that were raised at one line are one cause, and so are answers that are not
       finite.
    4. What is left is a cause of its own, named after its clause.

    A clause that failed in several dtypes or on several devices is listed once.
    """
    every = list(clauses)
    failed = [clause for clause in every if clause["status"] == "failed"]
    unnamed = [clause for clause in failed if not _names(clause)]
    texts = {str(entry["name"]): entry for entry in _entries(every)}
    causes = list(_named_causes([clause for clause in failed if _names(clause)], texts))
    causes += [
        _unnamed([one for one in unnamed if _kind_of_cause(one) == key])
        for key in dict.fromkeys(map(_kind_of_cause, unnamed))
    ]
    return sorted(causes, key=lambda cause: (cause["level"] != "MUST", -len(cause["clauses"])))


def _names(clause: ClauseEntry) -> set[str]:
    """The names of mistakes that explain a failure."""
    entries = clause.get("diagnosis") or ()
    names = {str(entry["name"]) for entry in entries if entry["name"] != UNKNOWN}
    return names | {str(name) for name in [clause.get("explained_by")] if name and not names}


def _named_causes(
    left: Sequence[ClauseEntry], texts: Mapping[str, Mapping[str, Any]]
) -> Iterator[CauseEntry]:
    """Names that explain every failure, the one that explains most of those left taken first."""
    while left:
        names = dict.fromkeys(name for clause in left for name in sorted(_names(clause)))
        own = {name: [clause for clause in left if name in _names(clause)] for name in names}
        best = max(names, key=lambda name: _weight(own[name], name))
        yield _named(best, own[best], texts.get(best, {"name": best}))
        left = [clause for clause in left if best not in _names(clause)]


def _weight(clauses: Sequence[ClauseEntry], name: str) -> tuple[int, int, float]:
    """How much a name explains: MUST clauses, all clauses, and how sure it is of them."""
    sure = sum(_confidence(entry) for entry in _entries(clauses) if entry["name"] == name)
    return sum(_level(clause) == "MUST" for clause in clauses), len(clauses), sure


def _entries(clauses: Iterable[ClauseEntry]) -> Iterator[Mapping[str, Any]]:
    for clause in clauses:
        yield from clause.get("diagnosis") or ()


def _confidence(entry: Mapping[str, Any]) -> float:
    return float(entry.get("confidence") or 0.0)


def _named(name: str, own: Sequence[ClauseEntry], text: Mapping[str, Any]) -> CauseEntry:
    """A known mistake, with the others that explain every one of its failures as well."""
    entries = [entry for entry in _entries(own) if entry["name"] == name]
    best = max(entries, key=_confidence, default=text)
    diagnosed = [_names(clause) for clause in own if not clause.get("explained_by")]
    shared = set.intersection(*diagnosed) if diagnosed else set()
    others = {str(entry["name"]): entry for entry in _entries(own) if entry["name"] in shared}
    blaming = next((entry["line"] for entry in [best, *entries] if entry.get("line")), None)
    return _cause(
        name, best, own, others=[others[one] for one in others if one != name], line=blaming
    )


def _kind_of_cause(clause: ClauseEntry) -> tuple[str, str]:
    """What failures without a name share if they have one cause."""
    violation = clause.get("violation") or _NONE
    if clause.get("diagnosis"):
        return UNKNOWN, ""
    if violation.get("kind") == "raised":
        return "raised", str(violation.get("message")).rpartition(" (")[2]
    if violation.get("kind") == "finite":
        return "finite", ""
    return "clause", clause["id"]


def _unnamed(own: Sequence[ClauseEntry]) -> CauseEntry:
    """A cause that is no known mistake, with what is known of it."""
    facts = max(_entries(own), key=lambda entry: len(str(entry.get("text"))), default=None)
    if facts is not None:
        lines = [entry["line"] for entry in _entries(own) if entry.get("line")]
        alike = bool(lines) and all(line == lines[0] for line in lines)
        return _cause(UNKNOWN, facts, own, line=lines[0] if alike else None)
    violation = (shown := smallest(own)).get("violation") or _NONE
    text = str(violation.get("message") or shown.get("reason") or "")
    several = len({clause["id"] for clause in own}) > 1
    together = {"raised": "exception", "finite": "not-finite"}
    name = together.get(str(violation.get("kind")), shown["id"]) if several else shown["id"]
    return _cause(name, {"text": text, "confidence": 1.0}, own)


def _cause(
    name: str,
    entry: Mapping[str, Any],
    own: Sequence[ClauseEntry],
    others: Sequence[Mapping[str, Any]] = (),
    line: Any = None,
) -> CauseEntry:
    shown = smallest(own)
    cause: CauseEntry = {
        **_without_data(entry),  # type: ignore[typeddict-item]
        "name": name,
        "text": str(entry.get("text") or ""),
        "fix": str(entry.get("fix") or ""),
        "confidence": _confidence(entry),
        "level": min(map(_level, own), key=("MUST", "SHOULD", "MAY").index),
        "clauses": list(dict.fromkeys(clause["id"] for clause in own)),
        "failure": {key: shown.get(key, "") for key in ("id", "dtype", "device")},
        "counterexample": shown.get("counterexample"),
    }
    if line is not None:
        cause["line"] = line
    if others:
        cause["alternatives"] = [_without_data(other) for other in others]
    return cause


def _without_data(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a diagnosis without what stands at its failure."""
    return {key: value for key, value in entry.items() if key not in ("facts", "picture", "line")}


def _level(clause: ClauseEntry) -> str:
    level = str(clause.get("level") or "MUST")
    return level if level in ("MUST", "SHOULD") else "MAY"


def smallest(clauses: Iterable[ClauseEntry]) -> ClauseEntry:
    """The failure that is easiest to read: of a MUST before others, then the smallest problem."""
    return min(clauses, key=lambda clause: (_level(clause) != "MUST", _size(clause)))


def _size(clause: ClauseEntry) -> tuple[bool, int, int]:
    """Whether a failing problem is lacking, its calls, and the elements of its tensors."""
    data = clause.get("counterexample") or _NONE
    problem = data.get("problem") or _NONE
    sizes = problem.get("geometry") or _NONE
    elements = math.prod(int(sizes.get(name) or 1) for name in _SIZES)
    return not problem, len(data.get("calls") or ()), elements
