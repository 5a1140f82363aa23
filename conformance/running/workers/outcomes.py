"""Results of clauses that could not end by themselves: exceptions, hangs, crashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...base.results import ClauseResult, Status, Violation, result_from_json
from ...targets.loading import one_line
from .messages import Task

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


IN_PROGRESS: Final = "the next one had not been answered"


@dataclass
class Heard:
    """The problem in progress, what was counted before it, and the failure that was found.

    ``examples`` are all problems that were begun, those of a reduction too.
    """

    problem: dict[str, Any] | None = None
    examples: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    trail: dict[str, Any] | None = None
    found: ClauseResult | None = None

    def take(self, tag: str, payload: Any) -> None:
        """Remember an event."""
        if tag == "found":
            self.found = result_from_json(payload)
            self.trail = self.found.trail
            return
        self.problem, self.counted = payload
        self.examples += 1
        if self.found is None and self.counted["trail"] is not None:
            self.trail = {**self.counted["trail"], "failed": True, "lost": True}

    def lost(self, task: Task, kind: str, message: str, seconds: float) -> ClauseResult:
        """The candidate has hung or died."""
        return failure(
            task,
            kind,
            message,
            self.problem,
            examples=self.examples,
            seconds=seconds,
            trail=self.trail,
        )

    def cut(self, task: Task, seconds: float) -> ClauseResult:
        """The run's time is up: a failure counts as it was found."""
        if self.found is not None:
            return self.found.replace(seconds=self.found.seconds + seconds)
        counted = {**self.counted, "planned": self.counted.get("planned") or 0}
        reason = IN_PROGRESS if self.problem is not None else ""
        return outcome(task, "untestable", reason, **counted, seconds=seconds)
