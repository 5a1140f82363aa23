"""A clause of a candidate as a test: its run, and the meaning of its status for pytest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import pytest

from ..base.expected import ExpectedFailure
from ..base.mistake import UNKNOWN
from ..base.printable_text import printable
from ..base.results import ClauseResult
from ..running.clause_run import PlannedClause
from ..running.workers.planning import CandidatePlan
from ..session.expectations import is_announced, judge
from ..views import counterexample
from ..views.wording import explanation, message
from . import STATUS

# The slug of the test that stands for parameters nobody declared.
UNCHECKED: Final = "declaration.unchecked"


class ClauseCase:
    """The ``clause`` of a test: calling it checks the clause and ends the test accordingly.

    ``candidate`` is the candidate's name; ``id``, ``level`` and ``requirement`` are the clause's;
    ``result`` is the outcome, None before the check. A case that ``speaks_for_gradients`` is no
    skip for an answer without gradients that nobody excluded: the verdict is then open.
    """

    def __init__(
        self,
        plan: CandidatePlan,
        planned: PlannedClause,
        *,
        requirement: str,
        expected: Iterable[ExpectedFailure] = (),
        qualified: bool = False,
        speaks_for_gradients: bool = False,
    ) -> None:
        self._plan = plan
        self._planned = planned
        self._expected = tuple(expected)
        self._qualified = qualified
        self._speaks_for_gradients = speaks_for_gradients
        self.requirement = requirement
        self.result: ClauseResult | None = None

    @property
    def id(self) -> str:
        """The clause's slug."""
        return self._planned.id

    @property
    def level(self) -> str:
        """MUST, SHOULD or MAY."""
        return self._planned.level

    @property
    def is_applicable(self) -> bool:
        """Whether the declaration leaves the clause anything to try; a call may still show not."""
        return not self._planned.reason

    @property
    def candidate(self) -> str:
        """The candidate's name, with dtype and device where it is judged in several."""
        where = f"-{self._planned.dtype}" if self._qualified else ""
        if self._planned.device != "cpu":
            where = f"{where}-{self._planned.device}"
        return f"{self._plan.candidate.name}{where}"

    @property
    def test_id(self) -> str:
        """The text in the brackets of a suite's test."""
        return f"{self.candidate}-{self.id}"

    def __call__(self) -> None:
        """Check the clause; fails, skips or xfails the running test unless it passed."""
        _conclude(self, self.check())

    def check(self) -> ClauseResult:
        """Run the clause and return the result, expected failures applied; the verdict is yours."""
        self.result = judge(self._run(), self._plan.candidate.name, self._expected)
        return self.result

    @property
    def announced(self) -> bool:
        """Whether the failure was announced, but as another one or until an earlier day."""
        return self.result is not None and is_announced(
            self.result, self._plan.candidate.name, self._expected
        )

    def explained(self) -> str:
        """The result in words, for a failing test."""
        if self.result is None:
            return "not checked"
        return _explained(self.result, self.requirement)

    def properties(self) -> list[tuple[str, object]]:
        """The properties of the test, as JUnit shows them."""
        if self.result is None:
            return []
        return [*self._facts(self.result), *_findings(self.result)]

    def _facts(self, result: ClauseResult) -> list[tuple[str, object]]:
        return [
            (STATUS, result.status),
            ("conformance_candidate", self._plan.candidate.name),
            ("conformance_clause", result.id),
            ("conformance_level", result.level),
            ("conformance_requirement", self.requirement),
            ("conformance_dtype", result.dtype),
            ("conformance_device", result.device),
            ("conformance_examples", result.examples),
            ("conformance_binding", result.binding),
        ]

    def _run(self) -> ClauseResult:
        if self._planned.reason:
            return self._planned.not_applicable()
        started, last = time.perf_counter(), None

        def on_example(problem: dict[str, Any]) -> None:
            nonlocal last
            last = problem

        try:
            # The user's filter may turn warnings into errors: a candidate that warns does not fail.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = self._plan.run.run(self._planned, on_example)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (a verdict: the candidate's or the harness' fault)
            seconds = time.perf_counter() - started
            return self._planned.after_exception(error, last, seconds=seconds)
        if self._speaks_for_gradients and result.lacks_gradients:
            return result.replace(status="untestable")
        return result


class UncheckedCase(ClauseCase):
    """The test of a candidate whose parameters look like masks and are not declared.

    As an untestable clause, the test cannot pass until the parameters are declared.
    """

    def __init__(self, plan: CandidatePlan, said: str) -> None:
        planned = PlannedClause(
            id=UNCHECKED,
            family=UNCHECKED.partition(".")[0],
            level="MUST",
            dtype=plan.planned[0].dtype,
            device=plan.planned[0].device,
        )
        requirement = "A parameter that looks like a mask is declared, or said to stay unchecked."
        super().__init__(plan, planned, requirement=requirement)
        self._said = said

    def _run(self) -> ClauseResult:
        return self._planned.result("untestable", self._said)


def _findings(result: ClauseResult) -> list[tuple[str, object]]:
    named = [str(entry.get("name") or "") for entry in result.diagnosis]
    facts = {
        "margin": result.margin,
        "violation": None if result.violation is None else result.violation.kind,
        "diagnosis": ", ".join(filter(None, named)) or None,
        "reason": printable(result.reason) or None,
    }
    return [(f"conformance_{name}", value) for name, value in facts.items() if value is not None]


def _explained(result: ClauseResult, requirement: str) -> str:
    where = f"{result.dtype} on {result.device}"
    named = [str(entry["name"]) for entry in result.diagnosis if entry["name"] != UNKNOWN]
    cause = f"{' or '.join(named)}: " if named else ""  # the short summary shows this line alone
    head = f"{cause}{result.id} [{result.level}, {where}] {result.status}"
    entry = {**result.as_json(), "requirement": requirement}
    explained = [f"  {label}: {text}" for label, text in explanation(entry)]
    shown = [f"    {line}" for line in counterexample.block(entry.get("counterexample") or {})]
    return "\n".join([head, *explained, *shown])


def _conclude(case: ClauseCase, result: ClauseResult) -> None:
    """End the running test as the result demands; only a pass returns."""
    if result.status == "passed":
        return
    if result.status == "not-applicable":
        pytest.skip(f"not applicable: {result.reason}")
    if result.status == "expected-failure":
        _tolerate(case, f"expected failure: {result.reason}")
    if result.status in ("failed", "untestable") and result.level != "MUST" and not case.announced:
        _tolerate(case, f"{result.level} {result.status}: {message(result.as_json())}")
    pytest.fail(case.explained(), pytrace=False)


def _tolerate(case: ClauseCase, reason: str) -> NoReturn:
    """xfail; with --runxfail, under which xfail returns, fail."""
    pytest.xfail(reason)
    pytest.fail(case.explained(), pytrace=False)
