"""A planned clause, how it is run, and the results of clauses that could not end by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..base.patience import fair_clock
from ..base.results import ClauseResult, Status, Violation, result_from_json
from ..targets.loading import one_line
from .tally import Tally

IN_PROGRESS: Final = "the next one had not been answered"
# What the runner never swallows, and what only a candidate raises in a worker.
_OF_THE_CANDIDATE: Final = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)


@dataclass(frozen=True, kw_only=True)
class PlannedClause:
    """One clause to run, in one dtype on one device; ``reason`` says why it is not applicable."""

    id: str
    family: str
    level: str
    dtype: str
    device: str
    reason: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Dtype and device."""
        return self.dtype, self.device

    def result(self, status: Status, reason: str = "", **more: Any) -> ClauseResult:
        """A result of this clause."""
        return ClauseResult(
            id=self.id,
            family=self.family,
            level=self.level,
            dtype=self.dtype,
            device=self.device,
            status=status,
            reason=reason,
            **more,
        )

    def not_applicable(self) -> ClauseResult:
        """The result of a clause that the plan has ruled out."""
        return self.result("not-applicable", self.reason)

    def failure(
        self, kind: str, message: str, problem: dict[str, Any] | None, **more: Any
    ) -> ClauseResult:
        """A failure whose counterexample is the problem that was in progress."""
        violation = Violation(kind=kind, message=message)
        more["counterexample"] = _counterexample(problem)
        return self.result("failed", message, violation=violation, **more)

    def after_exception(
        self, error: BaseException, problem: dict[str, Any] | None, **more: Any
    ) -> ClauseResult:
        """The result after an exception from the runner: a failure, or an error of the harness."""
        if isinstance(error, _OF_THE_CANDIDATE):
            return self.failure("raised", f"raised {one_line(error)}", problem, **more)
        more["counterexample"] = _counterexample(problem)
        return self.result("error", f"the harness raised {one_line(error)}", **more)


def _counterexample(problem: dict[str, Any] | None) -> dict[str, Any] | None:
    """The problem as the runner's own counterexamples hold it, without tensors."""
    return None if problem is None else {"problem": problem}


@dataclass(frozen=True, kw_only=True)
class ClauseRun:
    """How a clause is run: how long, how progress is reported, and how a failure is.

    until
        The moment on the fair clock of this thread at which no further example is begun.
    on_example
        Gets each problem (plain data) before it is tried, and the tally of those before it.
    on_failure
        Gets a failure before it is reduced and diagnosed.
    deferred
        A failure is not reduced or diagnosed: :meth:`CandidateRun.explain_failure` does that.
    round
        0 for the examples of the profile, then others for each round of a profile that explores.
    most
        Examples after which the clause is laid aside: the next run of it goes on from there.
    search
        Seconds that all searches for names of the candidate's mistakes may take together.
    """

    until: float | None = None
    on_example: Callable[[dict[str, Any], Tally], None] = lambda _problem, _tally: None
    on_failure: Callable[[ClauseResult], None] = lambda _result: None
    deferred: bool = False
    round: int = 0
    most: int | None = None
    search: float = math.inf

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.until is not None and fair_clock() >= self.until


UNLIMITED: Final = ClauseRun()


@dataclass
class Progress:
    """The problem in progress, the counts before it, and the failure where there is one.

    ``examples`` are all problems that were begun, those of a reduction too. ``on_failure`` is
    called when a failure is there.
    """

    problem: dict[str, Any] | None = None
    examples: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    trail: dict[str, Any] | None = None
    failure: ClauseResult | None = None
    on_failure: Callable[[], None] = lambda: None

    def receive(self, tag: str, payload: Any) -> None:
        """Remember an event of the worker: an ``example`` or a ``failure``."""
        if tag == "failure":
            self.failure = result_from_json(payload)
            self.trail = self.failure.trail
            self.on_failure()
            return
        self.problem, self.counted = payload
        # A clause that was laid aside has had examples before.
        self.examples = max(self.examples, self.counted.get("examples", 0)) + 1
        if self.failure is None and self.counted["trail"] is not None:
            self.trail = {**self.counted["trail"], "failed": True, "lost": True}

    def lost(self, clause: PlannedClause, kind: str, message: str, seconds: float) -> ClauseResult:
        """The result where the candidate hangs or dies: an answer that failed before has failed.

        An exception before that may have had the same cause, such as a device that is broken.
        """
        found = None if self.failure is None else self.failure.violation
        if self.failure is not None and found is not None and found.kind != "raised":
            hint = "; --timeout sets the limit" if kind == "hung" else ""  # a busy machine is slow
            return _kept(self.failure, f"{message}{hint}", seconds)
        if found is not None:
            message += f"; before that it {found.message}"
        more = {"examples": self.examples, "seconds": seconds, "trail": self.trail}
        return clause.failure(kind, message, self.problem, **more)

    def ended(self, clause: PlannedClause, error: BaseException, seconds: float) -> ClauseResult:
        """The result after an exception that the runner lets through."""
        if self.failure is not None:
            return _kept(self.failure, f"the candidate raised {one_line(error)}", seconds)
        more = {"examples": self.examples, "seconds": seconds, "trail": self.trail}
        return clause.after_exception(error, self.problem, **more)

    def cut(self, clause: PlannedClause, seconds: float) -> ClauseResult:
        """The result where the time of the run is up: a failure counts as it is."""
        if self.failure is not None:
            return self.failure.replace(seconds=self.failure.seconds + seconds)
        counted = {**self.counted, "planned": self.counted.get("planned") or 0}
        reason = IN_PROGRESS if self.problem is not None else ""
        return clause.result("untestable", reason, **counted, seconds=seconds)


def _kept(failure: ClauseResult, message: str, seconds: float) -> ClauseResult:
    """A failure as it was found, where what came later ended the search for its cause."""
    said = f"{failure.reason}; in the search for its cause {message}"
    found = failure.violation
    return failure.replace(
        reason=said,
        violation=None if found is None else replace(found, message=said),
        seconds=failure.seconds + seconds,
    )
