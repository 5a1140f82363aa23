"""Which expected failures make a run green: what stays of the old ones, and what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..base.expected import ExpectedFailure
from ..base.results import ClauseResult
from .announcing import PASSES, New, Outcome, announcements
from .expectations import not_holding
from .judging import concerning, covers, is_announced

# Who reached into the judge may have written any other verdict, too.
_NEVER_ACCEPTED: Final = ("tampered",)
# A busy machine, or one without memory, may do that to any candidate.
_BY_CHANCE: Final = ("hung", "crashed")


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What a file of expected failures has to hold; ``dropped`` says of each why it goes."""

    kept: tuple[ExpectedFailure, ...] = ()
    added: tuple[New, ...] = ()
    dropped: tuple[tuple[ExpectedFailure, str], ...] = ()

    @property
    def entries(self) -> tuple[ExpectedFailure, ...]:
        """All that the file holds."""
        return (*self.kept, *(new.entry for new in self.added))


def accept(outcome: Outcome, old: Sequence[ExpectedFailure]) -> Acceptance:
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


def _dropped(outcome: Outcome, old: Sequence[ExpectedFailure]) -> dict[ExpectedFailure, str]:
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


def _differs(outcome: Outcome, entry: ExpectedFailure, same: Mapping[ExpectedFailure, str]) -> str:
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


def _failures(outcome: Outcome, entry: ExpectedFailure) -> list[tuple[str, ClauseResult]]:
    return [
        (name, result) for name, result in _concerned(outcome, entry) if result.status == "failed"
    ]


def _concerned(outcome: Outcome, entry: ExpectedFailure) -> Iterator[tuple[str, ClauseResult]]:
    for name, results in outcome.results.items():
        for result in results:
            if concerning(result, name, [entry]):
                yield name, result


def _passes(outcome: Outcome, entry: ExpectedFailure) -> bool:
    """Whether a clause that is named exactly passes somewhere: an unexpected pass."""
    return entry.exact and any(
        result.status == "passed" for _, result in _concerned(outcome, entry)
    )


def _red(
    outcome: Outcome, kept: Sequence[ExpectedFailure], narrowed: Sequence[ExpectedFailure]
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
