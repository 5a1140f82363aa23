"""Expected failures for what a run has found, and which of the old ones stay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Final

from ..base.expected import ExpectedFailure
from ..base.results import ClauseResult
from ..running.workers.messages import Loaded
from .expectations import Selection, concerning, covers, diagnoses, is_announced, judge, not_holding

Pairs = AbstractSet[tuple[str, str]]
TODO: Final = "TODO: say why"
PASSES: Final = "the clause passes, at least in part"
_GLOB: Final = re.compile(r"[*?[]")
_NO_MISTAKE: Final = "unknown-mistake"


@dataclass(frozen=True, kw_only=True)
class NewExpectation:
    """An expectation that is added, and the comments that go above it."""

    entry: ExpectedFailure
    comments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnjudgedRun:
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
    outcome: UnjudgedRun,
    failures: Iterable[tuple[str, ClauseResult]],
    dropped: Mapping[ExpectedFailure, str],
) -> tuple[NewExpectation, ...]:
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
    outcome: UnjudgedRun, group: _Group, dropped: Mapping[ExpectedFailure, str]
) -> Iterator[NewExpectation]:
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
        yield NewExpectation(entry=entry, comments=(*comments, _found(result)))


def _conditions(outcome: UnjudgedRun, group: _Group) -> list[tuple[str, str]]:
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
    outcome: UnjudgedRun,
    group: _Group,
    result: ClauseResult,
    dropped: Mapping[ExpectedFailure, str],
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


# Who reached into the judge may have written any other verdict, too.
_NEVER_ACCEPTED: Final = ("tampered",)
# A busy machine, or one without memory, may do that to any candidate.
_BY_CHANCE: Final = ("hung", "crashed")


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What a file of expected failures has to hold; ``dropped`` says of each why it goes."""

    kept: tuple[ExpectedFailure, ...] = ()
    added: tuple[NewExpectation, ...] = ()
    dropped: tuple[tuple[ExpectedFailure, str], ...] = ()

    @property
    def entries(self) -> tuple[ExpectedFailure, ...]:
        """All that the file holds."""
        return (*self.kept, *(new.entry for new in self.added))


def accept(outcome: UnjudgedRun, old: Sequence[ExpectedFailure]) -> Acceptance:
    """The expectations that make a run green, as far as failures of clauses can be expected.

    Old ones stay where they hold; the others go. One whose clause passes somewhere is replaced by
    narrower ones, which keep its reason and its last day; those for other failures say that their
    reason is to be given.
    """
    unique = list(dict.fromkeys(old))
    dropped = _dropped(outcome, unique)
    kept = tuple(entry for entry in unique if entry not in dropped)
    red = list(_red(outcome, kept, [entry for entry in dropped if _passes(outcome, entry)]))
    added = announcements(outcome, red, dropped)
    return Acceptance(kept=kept, added=added, dropped=tuple(dropped.items()))


def _dropped(outcome: UnjudgedRun, old: Sequence[ExpectedFailure]) -> dict[ExpectedFailure, str]:
    """The old entries that do not hold, and why."""
    found = not_holding(old, outcome.judged(old), outcome.selection, today=outcome.today)
    why = {id(stale.expectation): stale.why for stale in found}
    same = {stale.expectation: stale.why for stale in found if stale.problem == "different"}
    dropped = {}
    for entry in old:
        told = why.get(id(entry)) or _differs(outcome, entry, same)
        if _passes(outcome, entry):
            told = PASSES
        if told:
            dropped[entry] = told
    return dropped


def _differs(
    outcome: UnjudgedRun, entry: ExpectedFailure, same: Mapping[ExpectedFailure, str]
) -> str:
    """Why an entry covers nothing of what fails, "" where it does, or may have but for a hang."""
    failures = [result for _, result in _failures(outcome, entry)]
    if any(covers(entry, result) or _by_chance(result) for result in failures):
        return ""
    mine = (
        why for other, why in same.items() if replace(other, candidate=entry.candidate) == entry
    )
    return next(mine, "")


def _by_chance(result: ClauseResult) -> bool:
    return result.violation is not None and result.violation.kind in _BY_CHANCE


def _failures(outcome: UnjudgedRun, entry: ExpectedFailure) -> list[tuple[str, ClauseResult]]:
    return [
        (name, result) for name, result in _concerned(outcome, entry) if result.status == "failed"
    ]


def _concerned(outcome: UnjudgedRun, entry: ExpectedFailure) -> Iterator[tuple[str, ClauseResult]]:
    for name, results in outcome.results.items():
        for result in results:
            if concerning(result, name, [entry]):
                yield name, result


def _passes(outcome: UnjudgedRun, entry: ExpectedFailure) -> bool:
    """Whether a clause that is named exactly passes somewhere: an unexpected pass."""
    return entry.exact and any(
        result.status == "passed" for _, result in _concerned(outcome, entry)
    )


def _red(
    outcome: UnjudgedRun, kept: Sequence[ExpectedFailure], narrowed: Sequence[ExpectedFailure]
) -> Iterator[tuple[str, ClauseResult]]:
    """The failures that need an expectation.

    They are those that redden the run: of a MUST, announced as other ones; and those that an entry
    covered which is too wide now.
    """
    levels = ("MUST", "SHOULD") if outcome.strict else ("MUST",)
    for name, results in outcome.judged(kept).items():
        for result in results:
            wide = any(covers(entry, result) for entry in concerning(result, name, narrowed))
            spoken_of = is_announced(result, name, (*outcome.declared(name), *kept))
            kind = None if result.violation is None else result.violation.kind
            wanted = result.level in levels or wide or spoken_of
            if result.status == "failed" and wanted and kind not in _NEVER_ACCEPTED:
                yield name, result
