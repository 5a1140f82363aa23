from __future__ import annotations

import re
from typing import Any

import pytest
from records import result
from view_records import FAILED, RECORDS, SHOULD_FAILED, candidate, of, record

from conformance.base.expected import ExpectedFailure
from conformance.base.record import exit_code
from conformance.base.results import ClauseResult
from conformance.session.expectations import Stale
from conformance.views import View
from conformance.views.complete import complete
from conformance.views.verdict_marks import (
    is_strict,
    mark,
    problems,
    summary_sentence,
    whole,
)

MARKS: dict[str, tuple[ClauseResult, str, str]] = {
    "passed": (result(), "passed", "passed"),
    "a MUST failed": (FAILED, "failed", "failed"),
    "a SHOULD failed": (SHOULD_FAILED, "skipped", "failed"),
    "a MAY failed": (result("failed", level="MAY"), "skipped", "skipped"),
    "a MUST untestable": (result("untestable"), "failed", "failed"),
    "a SHOULD untestable": (result("untestable", level="SHOULD"), "skipped", "skipped"),
    "not applicable": (result("not-applicable"), "skipped", "skipped"),
    "expected": (result("expected-failure"), "skipped", "skipped"),
    "an unexpected pass": (result("unexpected-pass"), "failed", "failed"),
    "an unexpected pass of a SHOULD": (
        result("unexpected-pass", level="SHOULD"),
        "failed",
        "failed",
    ),
    "the harness": (result("error"), "error", "error"),
}


@pytest.mark.parametrize(("outcome", "mild", "strict"), MARKS.values(), ids=MARKS.keys())
def test_marks(outcome: ClauseResult, mild: str, strict: str) -> None:
    """What reddens the verdict is a failure, what it tolerates is skipped."""
    clause = outcome.as_json()
    assert mark(clause) == mild
    assert mark(clause, strict=True) == strict


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("fail_on", ["must", "should"])
def test_red_is_red_in_test_reports(name: str, fail_on: str) -> None:
    """A report has a failure, an error or a problem exactly where the exit code is not 0."""
    report = complete({**RECORDS[name], "fail_on": fail_on})
    marks = {
        mark(clause, strict=is_strict(report))
        for entry in report["candidates"]
        for clause in entry["clauses"]
    }
    red = bool(marks & {"failed", "error"}) or bool(problems(report))
    assert red == (exit_code(report, strict=fail_on == "should") != 0)
    assert red != whole(report).green


def test_a_strict_run_fails_on_a_should() -> None:
    """Where the record says that a SHOULD counts, the run fails although the verdict stands."""
    report = complete({**of(SHOULD_FAILED, result()), "fail_on": "should"})
    assert report["candidates"][0]["verdict"] == "conforms"
    assert (whole(report).word, whole(report).green) == ("fails", False)
    assert whole(complete(of(SHOULD_FAILED, result()))).word == "conforms"


def ids(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Which problems a record has, and whose."""
    return [(problem.id, problem.candidate) for problem in problems(complete(report))]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("stale", "stale expectation"),
        ("expired", "expired expectation"),
        ("different", "not the expected failure"),
    ],
)
def test_every_view_says_why_an_expectation_does_not_hold(problem: Any, words: str) -> None:
    """One that has expired is not called stale, and what to do about it is said everywhere."""
    entry = Stale(
        expectation=ExpectedFailure(clause="mask.golden", reason="known", candidate="mine"),
        why="it is so",
        problem=problem,
        change="write a later day",
    )
    whole = complete(record(candidate([FAILED]), stale=[entry]))
    said = f"{words} mask.golden of mine (known): it is so; write a later day"
    names = ("junit:render_junit", "sarif:render_sarif", "ctrf:render_ctrf", "html:render_html")
    for renderer in (*names, "terminal:render_terminal"):
        text = View("x", renderer, "").render(whole)
        told = " ".join(re.sub(r"<(?!/?failure)[^>]*>", "", text).split())
        assert said.lower() in told.lower(), renderer
    assert said.replace("_", "") in View("x", "markdown:render_markdown", "").render(whole)


def test_a_cause_comes_first() -> None:
    """Lists of tests and alerts show one line: the mistake leads it, unless it has no name."""
    clause = {**FAILED.as_json(), "diagnosis": [], "explained_by": "scale-missing"}
    assert summary_sentence(clause) == "scale-missing: off by 1 at [0, 0]"
    unknown = [{"name": "unknown-mistake", "text": "no known mistake explains it"}]
    assert summary_sentence({**FAILED.as_json(), "diagnosis": unknown}) == "off by 1 at [0, 0]"
    two = [{"name": "x", "text": "it is x"}, {"name": "y", "text": "it is y"}]
    sentence = summary_sentence({**FAILED.as_json(), "diagnosis": two})
    assert sentence == "x or y (it is x): off by 1 at [0, 0]"
