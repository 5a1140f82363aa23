"""Expected failures for what a run has found: one entry for failures that are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from ..base.expected import ExpectedFailure
from ..base.results import ClauseResult
from ..running.workers.messages import Loaded
from .expectations import Selection
from .judging import concerning, covers, diagnoses, judge

Pairs = AbstractSet[tuple[str, str]]
TODO: Final = "TODO: say why"
PASSES: Final = "the clause passes, at least in part"
_GLOB: Final = re.compile(r"[*?[]")
_NO_MISTAKE: Final = "unknown-mistake"


@dataclass(frozen=True, kw_only=True)
class New:
    """An expectation that is added, and the comments that go above it."""

    entry: ExpectedFailure
    comments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run has found, not yet held against any expectation, and what it was asked for.

    ``results`` are by the candidate's name. With ``strict`` a failed SHOULD is red.
    """

    loaded: Sequence[Loaded]
    results: Mapping[str, Sequence[ClauseResult]]
    selection: Selection
    today: date
    strict: bool = False

    def declared(self, name: str) -> tuple[ExpectedFailure, ...]:
        """What a candidate's declaration expects."""
        return next(one.expected for one in self.loaded if one.name == name)

    def judged(self, entries: Sequence[ExpectedFailure]) -> dict[str, list[ClauseResult]]:
        """The results in the light of what is declared and of some further entries."""
        return {
            name: [
                judge(result, name, (*self.declared(name), *entries), today=self.today)
                for result in some
            ]
            for name, some in self.results.items()
        }


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The failures of one clause of one candidate that are alike."""

    candidate: str
    clause: str
    kind: str
    diagnosis: str | None
    results: list[ClauseResult] = field(default_factory=list)


def announcements(
    outcome: Outcome,
    failures: Iterable[tuple[str, ClauseResult]],
    dropped: Mapping[ExpectedFailure, str],
) -> tuple[New, ...]:
    """The entries for some failures, as few as say exactly where each is expected.

    An entry that goes only since its clause passes elsewhere hands its reason on.
    """
    groups = _groups(failures)
    return tuple(new for group in groups for new in _entries(outcome, group, dropped))


def _groups(red: Iterable[tuple[str, ClauseResult]]) -> list[_Group]:
    found: dict[tuple[Any, ...], _Group] = {}
    for name, result in red:
        kind = "" if result.violation is None else result.violation.kind
        key = (name, result.id, kind, _diagnosis(result))
        made = _Group(candidate=name, clause=result.id, kind=kind, diagnosis=_diagnosis(result))
        found.setdefault(key, made).results.append(result)
    return list(found.values())


def _diagnosis(result: ClauseResult) -> str | None:
    """The mistake to expect, where one is certain enough to be found again.

    Pairs of mistakes are searched for a limited time only, and what has no name today may have one
    in the next version.
    """
    names = [name for name in diagnoses(result) if name != _NO_MISTAKE and "+" not in name]
    return names[0] if names else None


def _entries(
    outcome: Outcome, group: _Group, dropped: Mapping[ExpectedFailure, str]
) -> Iterator[New]:
    """The entries for a group: one where the clause fails alike everywhere, else narrower ones."""
    told = _history(group, dropped)
    for dtype, device in _conditions(outcome, group):
        result = next(
            one
            for one in group.results
            if dtype in ("*", one.dtype) and device in ("*", one.device)
        )
        before = _before(outcome, group, result, dropped)
        entry = ExpectedFailure(
            clause=group.clause,
            reason=TODO if before is None else before.reason,
            candidate=_GLOB.sub(lambda sign: f"[{sign[0]}]", group.candidate),
            kind=group.kind,
            diagnosis=group.diagnosis,
            dtype=dtype,
            device=device,
            expires=None if before is None else before.expires,
        )
        comments = () if before is not None else told
        yield New(entry=entry, comments=(*comments, _found(result)))


def _conditions(outcome: Outcome, group: _Group) -> list[tuple[str, str]]:
    """The dtypes and devices in which the clause fails this way, as few as say it exactly."""
    loaded = next(one for one in outcome.loaded if one.name == group.candidate)
    ran = [
        result
        for result in outcome.results[group.candidate]
        if result.id == group.clause and result.status != "not-applicable"
    ]
    failing = {(result.dtype, result.device) for result in group.results}
    asked = {(result.dtype, result.device) for result in ran}
    dtypes, devices = (set(loaded.declaration.get(key, ())) for key in ("dtypes", "devices"))
    any_dtype = _whole(failing, asked, dtypes, along=0)
    any_device = _whole(failing, asked, devices, along=1)
    if any_dtype and any_device and failing != asked:
        any_dtype = False
    return sorted({("*" if any_dtype else one, "*" if any_device else two) for one, two in failing})


def _whole(failing: Pairs, asked: Pairs, declared: AbstractSet[str], *, along: int) -> bool:
    """Whether all that was asked along one axis fails, and no less than is declared."""
    across = {pair[1 - along] for pair in failing}
    alike = failing == {pair for pair in asked if pair[1 - along] in across}
    return alike and {pair[along] for pair in failing} >= declared


def _before(
    outcome: Outcome, group: _Group, result: ClauseResult, dropped: Mapping[ExpectedFailure, str]
) -> ExpectedFailure | None:
    """The entry that covered the failure, and goes only since its clause passes elsewhere."""
    for entry, why in dropped.items():
        mine = concerning(result, group.candidate, [entry]) and covers(entry, result)
        if mine and why == PASSES and not entry.expired(outcome.today):
            return entry
    return None


def _history(group: _Group, dropped: Mapping[ExpectedFailure, str]) -> tuple[str, ...]:
    """What was expected of the clause until now."""
    return tuple(
        f"until now: {entry.reason} ({why})"
        for entry, why in dropped.items()
        if concerning(group.results[0], group.candidate, [entry])
    )


def _found(result: ClauseResult) -> str:
    message = "" if result.violation is None else result.violation.message
    return f"{result.level}: {message}"
