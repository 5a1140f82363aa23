"""Planned clauses, how to run them, and results of clauses ended from outside."""

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
# Exceptions the runner never swallows, raised in a worker by the candidate alone.
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
    return None if problem is None else {"problem": problem}


@dataclass(frozen=True, kw_only=True)
class ClauseRun:
    """Conditions of a clause's run: time, progress reports and the handling of a failure.

    until: no example begins after this moment on the fair clock of this thread.
    on_example: gets every problem (plain data) before its trial, with the tally so far.
    on_failure: gets a failure before reduction and diagnosis.
    deferred: a failure is neither reduced nor diagnosed: :meth:`CandidateRun.explain_failure` does
        both.
    round: 0 for the profile's examples, then one number per round of a profile that explores.
    most: the clause is laid aside after this number of examples; the next run continues.
    search: seconds for all searches for names of the candidate's mistakes together.
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
    """The problem in progress, the counts before it, and the failure, if found.

    ``examples`` counts all begun problems, including reductions. ``on_failure`` is called when a
    failure is found.
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
        """Return the result of a hang or crash; an earlier wrong answer remains the failure.

        An earlier exception may have had the same cause, for example a broken device.
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
        """Return the result of a clause at the run's deadline; a found failure counts."""
        if self.failure is not None:
            return self.failure.replace(seconds=self.failure.seconds + seconds)
        counted = {**self.counted, "planned": self.counted.get("planned") or 0}
        reason = IN_PROGRESS if self.problem is not None else ""
        return clause.result("untestable", reason, **counted, seconds=seconds)


def _kept(failure: ClauseResult, message: str, seconds: float) -> ClauseResult:
    """Return a failure as found, adding why the search for its cause ended."""
    said = f"{failure.reason}; in the search for its cause {message}"
    found = failure.violation
    return failure.replace(
        reason=said,
        violation=None if found is None else replace(found, message=said),
        seconds=failure.seconds + seconds,
    )
