"""What a worker has said of a clause before its result: all there is if no result ever comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...base.results import ClauseResult, result_from_json
from .messages import Task
from .outcomes import failure, outcome

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
