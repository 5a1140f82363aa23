"""Results of clauses that could not end by themselves: exceptions, hangs, crashes, plans."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ...base.results import ClauseResult, Status, Violation
from ...targets.loading import one_line

# What the runner never swallows, and what a worker only ever sees from the candidate.
_THE_CANDIDATES: Final = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)


class Item(Protocol):
    """One planned clause: a Task or a Planned."""

    @property
    def id(self) -> str:
        """The clause's slug."""

    @property
    def family(self) -> str:
        """The clause's family."""

    @property
    def level(self) -> str:
        """MUST, SHOULD or MAY."""

    @property
    def dtype(self) -> str:
        """The dtype's name."""

    @property
    def device(self) -> str:
        """The device's name."""

    @property
    def reason(self) -> str:
        """Why the clause is not applicable, or ""."""


def outcome(item: Item, status: Status, reason: str = "", **more: Any) -> ClauseResult:
    """A result of a planned clause."""
    return ClauseResult(
        id=item.id,
        family=item.family,
        level=item.level,
        dtype=item.dtype,
        device=item.device,
        status=status,
        reason=reason,
        **more,
    )


def not_applicable(item: Item) -> ClauseResult:
    """The result of a clause that the plan has ruled out."""
    return outcome(item, "not-applicable", item.reason)


def failure(
    item: Item, kind: str, message: str, problem: dict[str, Any] | None, **more: Any
) -> ClauseResult:
    """A failed clause whose counterexample is the problem it was busy with."""
    violation = Violation(kind=kind, message=message)
    return outcome(
        item,
        "failed",
        message,
        violation=violation,
        counterexample=_counterexample(problem),
        **more,
    )


def from_exception(
    item: Item, error: BaseException, problem: dict[str, Any] | None, **more: Any
) -> ClauseResult:
    """What an exception out of the runner means: the candidate's fault, or the harness' own."""
    if isinstance(error, _THE_CANDIDATES):
        return failure(item, "raised", f"raised {one_line(error)}", problem, **more)
    return outcome(
        item,
        "error",
        f"the harness raised {one_line(error)}",
        counterexample=_counterexample(problem),
        **more,
    )


def _counterexample(problem: dict[str, Any] | None) -> dict[str, Any] | None:
    """The problem as the runner's own counterexamples hold it, without tensors."""
    return None if problem is None else {"problem": problem}
