"""Candidates side by side: where their results, their conventions and their margins differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import html_words
from .html_words import worst

Record = Mapping[str, Any]

# What a declaration says of itself or at length; the rest are conventions.
_NOT_CONVENTIONS: Final = ("kind", "semantics", "precision", "assumptions", "target", "name")
_STANDARD: Final = "standard"
_UNKNOWN: Final = "not declared"
_LONGEST_VALUE: Final = 160
_ABSENT: Final = "absent"


@dataclass(frozen=True, kw_only=True)
class Convention:
    """One convention: its name and what each candidate declares."""

    name: str
    values: list[str]

    @property
    def differs(self) -> bool:
        """Whether not all candidates declare the same."""
        return len(set(self.values)) > 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a clause for one candidate: its class, its word, why, and the worst margin."""

    kind: str
    word: str
    why: str
    margin: float | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One clause with its outcome for every candidate."""

    slug: str
    level: str
    requirement: str
    outcomes: list[Outcome]

    @property
    def differs(self) -> bool:
        """Whether candidates that were asked fare differently."""
        return len({outcome.kind for outcome in self.outcomes} - {"na", _ABSENT}) > 1

    @property
    def is_asked_of_all(self) -> bool:
        """Whether the record has a result, be it "not applicable", for every candidate."""
        return all(outcome.kind != _ABSENT for outcome in self.outcomes)

    @property
    def worst(self) -> float | None:
        """The largest margin of all candidates."""
        return worst(outcome.margin for outcome in self.outcomes)


def conventions(record: Record) -> list[Convention]:
    """Every convention that some candidate declares, those that differ first."""
    candidates = record["candidates"]
    found = [
        Convention(name="kind", values=[str(one["kind"]) for one in candidates]),
        *_declared(candidates),
        *_semantics(candidates),
    ]
    return sorted(found, key=lambda one: not one.differs)


def _declared(candidates: Sequence[Record]) -> Iterator[Convention]:
    declarations = [_mapping(candidate["declaration"]) for candidate in candidates]
    names = dict.fromkeys(name for one in declarations for name in one)
    for name in names:
        if name not in _NOT_CONVENTIONS:
            values = [said(one[name]) if name in one else _UNKNOWN for one in declarations]
            yield Convention(name=name.replace("_", " "), values=values)


def _semantics(candidates: Sequence[Record]) -> Iterator[Convention]:
    """Choices of semantics; a record lists those that are not the standard's."""
    points = [
        _mapping(_mapping(candidate["declaration"]).get("semantics")) for candidate in candidates
    ]
    for name in dict.fromkeys(name for point in points for name in point):
        values = [said(point[name]) if name in point else _STANDARD for point in points]
        yield Convention(name=f"semantics: {name.replace('_', ' ')}", values=values)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def said(value: Any) -> str:
    """A declared value in words."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        pairs = (f"{name}: {said(entry)}" for name, entry in value.items())
        return html_words.short(", ".join(pairs), _LONGEST_VALUE)
    if isinstance(value, list):
        return html_words.short(", ".join(map(str, value)), _LONGEST_VALUE)
    return html_words.short(str(value), _LONGEST_VALUE)


def compared(record: Record) -> list[Compared]:
    """Every clause of some candidate, in the order in which they first appear."""
    by_slug = [_by_slug(candidate) for candidate in record["candidates"]]
    slugs = dict.fromkeys(slug for one in by_slug for slug in one)
    return [_clause(slug, [one.get(slug, []) for one in by_slug]) for slug in slugs]


def not_asked(clauses: Sequence[Compared]) -> str:
    """How many clauses cannot differ, as some candidate was not asked; "" where there are none.

    So it is in runs with other ``--only``, and in those that were interrupted.
    """
    number = sum(not clause.is_asked_of_all for clause in clauses)
    were = "1 clause was" if number == 1 else f"{number} clauses were"
    return f"{were} not asked of every candidate, and say nothing of those" if number else ""


def _by_slug(candidate: Record) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for clause in candidate["clauses"]:
        found.setdefault(str(clause["id"]), []).append(clause)
    return found


def _clause(slug: str, results: Sequence[Sequence[Record]]) -> Compared:
    first = next(clause for own in results for clause in own)
    return Compared(
        slug=slug,
        level=str(first["level"]),
        requirement=str(first["requirement"]),
        outcomes=[_outcome(own) for own in results],
    )


def _outcome(results: Sequence[Record]) -> Outcome:
    """The worst of a candidate's results in all dtypes."""
    if not results:
        return Outcome(kind=_ABSENT, word="not run", why="", margin=None)
    kinds = [html_words.kind(clause) for clause in results]
    kind = next(name for name in html_words.WORST_FIRST if name in kinds)
    clause = results[kinds.index(kind)]
    return Outcome(
        kind=kind,
        word=str(clause["status"]),
        why=_why(clause),
        margin=worst(one["margin"] for one in results),
    )


def _why(clause: Record) -> str:
    """The mistake by name where it is known, else what was found, else the reason."""
    for entry in clause["diagnosis"]:
        if float(entry.get("confidence") or 0) > 0 and entry.get("name"):
            return str(entry["name"])
    if clause["violation"] is not None and clause["violation"]["message"]:
        return str(clause["violation"]["message"])
    return str(clause["reason"])


def circumstances(record: Record) -> list[tuple[str, list[str]]]:
    """What the runs were that stand side by side, and did not have in common: name and values.

    Empty for a comparison of one run: there all circumstances are the same.
    """
    runs = [_told(run) for run in record.get("compared") or ()]
    names = dict.fromkeys(name for run in runs for name in run)
    return [
        (name, values)
        for name in names
        if len(set(values := [run.get(name, "unknown") for run in runs])) > 1 and name != "source"
    ]


def _told(run: Record) -> dict[str, str]:
    tool, environment = _mapping(run.get("tool")), _mapping(run.get("environment"))
    return {
        "source": str(run.get("source", "")),
        **{name: str(run[name]) for name in ("profile", "seed") if name in run},
        **{f"tool {name}": str(value) for name, value in tool.items() if name != "name"},
        **{str(name): str(value) for name, value in environment.items()},
    }


def sources(record: Record) -> list[str]:
    """What the runs are called."""
    return [str(run.get("source", "")) for run in record.get("compared") or ()]
