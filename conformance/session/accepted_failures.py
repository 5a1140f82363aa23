"""The expected failures accepting a run's results, and old ones to keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from ..base.expected import ExpectedFailure
from ..base.mistake import UNKNOWN, parts_of
from ..base.results import ClauseResult
from ..running.workers.messages import Loaded
from .expectations import Selection, concerning, covers, diagnoses, is_announced, judge, not_holding

Pairs = AbstractSet[tuple[str, str]]
TODO: Final = "TODO: say why"
PASSES: Final = "the clause passes, at least in part"
_GLOB: Final = re.compile(r"[*?[]")


@dataclass(frozen=True, kw_only=True)
class NewExpectation:
    """An added expectation, with the comments above it."""

    entry: ExpectedFailure
    comments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnjudgedRun:
    """The results of a run before any expectation is applied, and the run's selection.

    ``results`` are by candidate name. With ``strict`` a failed SHOULD is red.
    """

    loaded: Sequence[Loaded]
    results: Mapping[str, Sequence[ClauseResult]]
    selection: Selection
    today: date
    strict: bool = False

    def declared(self, name: str) -> tuple[ExpectedFailure, ...]:
        """The expectations of a candidate's declaration."""
        return next(loaded.expected for loaded in self.loaded if loaded.name == name)

    def judged(self, entries: Sequence[ExpectedFailure]) -> dict[str, list[ClauseResult]]:
        """The results after applying the declared and some further expectations."""
        return {
            name: [
                judge(result, name, (*self.declared(name), *entries), today=self.today)
                for result in some
            ]
            for name, some in self.results.items()
        }

    def concerned(self, entry: ExpectedFailure) -> Iterator[tuple[str, ClauseResult]]:
        """The results that an expectation is about, with the names of their candidates."""
        for name, results in self.results.items():
            for result in results:
                if concerning(result, name, [entry]):
                    yield name, result

    def passes(self, entry: ExpectedFailure) -> bool:
        """Whether a clause that is named exactly passes somewhere: an unexpected pass."""
        return entry.exact and any(result.status == "passed" for _, result in self.concerned(entry))


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Equal failures of one clause of one candidate."""

    candidate: str
    clause: str
    kind: str
    diagnosis: str | None
    results: list[ClauseResult] = field(default_factory=list)


def announcements(
    run: UnjudgedRun,
    failures: Iterable[tuple[str, ClauseResult]],
    dropped: Mapping[ExpectedFailure, str],
) -> tuple[NewExpectation, ...]:
    """Return the fewest entries that cover exactly the failures given.

    A dropped entry whose clause passes elsewhere hands the reason on.
    """
    groups: dict[tuple[str, str, str, str | None], _Group] = {}
    for name, result in failures:
        # Only a few pairs of mistakes are tried, and an unnamed mistake may have a name in the next
        # version: neither is expected.
        names = (name for name in diagnoses(result) if name != UNKNOWN)
        diagnosed = [name for name in names if len(parts_of(name)) == 1]
        kind = "" if result.violation is None else result.violation.kind
        diagnosis = diagnosed[0] if diagnosed else None
        group = _Group(candidate=name, clause=result.id, kind=kind, diagnosis=diagnosis)
        groups.setdefault((name, result.id, kind, diagnosis), group).results.append(result)
    return tuple(new for group in groups.values() for new in _entries(run, group, dropped))


def _entries(
    run: UnjudgedRun, group: _Group, dropped: Mapping[ExpectedFailure, str]
) -> Iterator[NewExpectation]:
    """Yield a group's entries: one if the clause fails alike everywhere, else narrower ones."""
    history = [
        f"until now: {entry.reason} ({why})"
        for entry, why in dropped.items()
        if concerning(group.results[0], group.candidate, [entry])
    ]
    for dtype, device in _conditions(run, group):
        result = next(
            failure
            for failure in group.results
            if dtype in ("*", failure.dtype) and device in ("*", failure.device)
        )
        before = _before(run, group, result, dropped)
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
        message = "" if result.violation is None else result.violation.message
        comments = [] if before is not None else history
        yield NewExpectation(entry=entry, comments=(*comments, f"{result.level}: {message}"))


def _conditions(run: UnjudgedRun, group: _Group) -> list[tuple[str, str]]:
    """Return the fewest dtype and device patterns that describe the failing conditions."""
    loaded = next(loaded for loaded in run.loaded if loaded.name == group.candidate)
    ran = {
        (result.dtype, result.device)
        for result in run.results[group.candidate]
        if result.id == group.clause and result.status != "not-applicable"
    }
    failing = {(result.dtype, result.device) for result in group.results}
    dtypes, devices = (set(loaded.declaration.get(key, ())) for key in ("dtypes", "devices"))
    any_dtype = _whole(failing, ran, dtypes, along=0)
    any_device = _whole(failing, ran, devices, along=1)
    if any_dtype and any_device and failing != ran:
        any_dtype = False
    return sorted(
        {("*" if any_dtype else dtype, "*" if any_device else device) for dtype, device in failing}
    )


def _whole(failing: Pairs, ran: Pairs, declared: AbstractSet[str], *, along: int) -> bool:
    """Tell whether everything run along one axis fails, covering all declared values."""
    across = {pair[1 - along] for pair in failing}
    alike = failing == {pair for pair in ran if pair[1 - along] in across}
    return alike and {pair[along] for pair in failing} >= declared


def _before(
    run: UnjudgedRun, group: _Group, result: ClauseResult, dropped: Mapping[ExpectedFailure, str]
) -> ExpectedFailure | None:
    """Return the dropped entry that covered the failure, and whose clause passes elsewhere."""
    for entry, why in dropped.items():
        own = concerning(result, group.candidate, [entry]) and covers(entry, result)
        if own and why == PASSES and not entry.expired(run.today):
            return entry
    return None


# A candidate tampering with the harness may have forged every verdict.
_NEVER_ACCEPTED: Final = ("tampered",)
# On a busy machine, or without memory, any candidate may hang or crash.
_BY_CHANCE: Final = ("hung", "crashed")


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The content of a file of expected failures; ``dropped`` gives the reasons for removals."""

    kept: tuple[ExpectedFailure, ...] = ()
    added: tuple[NewExpectation, ...] = ()
    dropped: tuple[tuple[ExpectedFailure, str], ...] = ()

    @property
    def entries(self) -> tuple[ExpectedFailure, ...]:
        """All entries of the file."""
        return (*self.kept, *(new.entry for new in self.added))


def accept(run: UnjudgedRun, old: Sequence[ExpectedFailure]) -> Acceptance:
    """Return the expectations that make a run green, as far as failures can be expected.

    Valid old expectations stay; the rest goes. An expectation whose clause passes somewhere is
    replaced by narrower ones with equal reason and last day. Expectations of new failures ask for a
    reason.
    """
    unique = list(dict.fromkeys(old))
    dropped = _dropped(run, unique)
    kept = tuple(entry for entry in unique if entry not in dropped)
    red = list(_red(run, kept, [entry for entry in dropped if run.passes(entry)]))
    added = announcements(run, red, dropped)
    return Acceptance(kept=kept, added=added, dropped=tuple(dropped.items()))


def _dropped(run: UnjudgedRun, old: Sequence[ExpectedFailure]) -> dict[ExpectedFailure, str]:
    """Return the old entries that do not hold, and why."""
    stale = not_holding(old, run.judged(old), run.selection, today=run.today)
    why = {id(entry.expectation): entry.why for entry in stale}
    different = {entry.expectation: entry.why for entry in stale if entry.problem == "different"}
    reasons = {
        entry: PASSES
        if run.passes(entry)
        else why.get(id(entry)) or _differs(run, entry, different)
        for entry in old
    }
    return {entry: reason for entry, reason in reasons.items() if reason}


def _differs(
    run: UnjudgedRun, entry: ExpectedFailure, different: Mapping[ExpectedFailure, str]
) -> str:
    """Return why an entry covers no failure, "" if it does, or may but for a hang."""
    for _, result in run.concerned(entry):
        by_chance = result.violation is not None and result.violation.kind in _BY_CHANCE
        if result.status == "failed" and (covers(entry, result) or by_chance):
            return ""
    own = (
        why
        for other, why in different.items()
        if replace(other, candidate=entry.candidate) == entry
    )
    return next(own, "")


def _red(
    run: UnjudgedRun, kept: Sequence[ExpectedFailure], narrowed: Sequence[ExpectedFailure]
) -> Iterator[tuple[str, ClauseResult]]:
    """Yield the failures that need an expectation.

    These redden the run (a MUST, or announced as a different failure), or were covered by an entry
    that is too wide now.
    """
    levels = ("MUST", "SHOULD") if run.strict else ("MUST",)
    for name, results in run.judged(kept).items():
        for result in results:
            wide = any(covers(entry, result) for entry in concerning(result, name, narrowed))
            announced = is_announced(result, name, (*run.declared(name), *kept))
            kind = None if result.violation is None else result.violation.kind
            needed = result.level in levels or wide or announced
            if result.status == "failed" and needed and kind not in _NEVER_ACCEPTED:
                yield name, result
