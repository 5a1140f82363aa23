"""The line that a diagnosis blames is shown by every view, whatever a record says it is."""

from __future__ import annotations

import html
import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from records import PROBLEM, result
from view_records import of

from conformance.base.results import Violation
from conformance.views import TERMINAL, VIEWS, wording
from conformance.views.complete import complete
from conformance.views.github import all_annotations
from conformance.views.summary import summary

LINE = {"file": "mine/attention.py", "number": 32, "text": "scores = query @ key.mT"}
SAID = "mine/attention.py:32: scores = query @ key.mT"


def record(line: Any) -> dict[str, Any]:
    """The record of one failure whose diagnosis blames a line."""
    entry = {"name": "scale-missing", "text": "no scale", "fix": "scale", "confidence": 1.0}
    failure = result(
        "failed",
        "numerics.scale",
        violation=Violation(kind="value", message="off by 1"),
        counterexample={"problem": PROBLEM},
        diagnosis=[{**entry, "line": line}],
    )
    return of(failure)


def test_a_clause_counts_once_whatever_the_dtypes() -> None:
    """Of two dtypes a clause is one clause, its worse result; all views say the same."""
    dtypes = ("float32", "bfloat16")
    results = [
        *(result("failed", "mask.golden", dtype=dtype) for dtype in dtypes),
        result("passed", "mask.bias"),
        result("failed", "mask.bias", dtype="bfloat16"),
        *(result("passed", "shape.output", dtype=dtype) for dtype in dtypes),
        *(result("not-applicable", "cache.golden", dtype=dtype, reason="no") for dtype in dtypes),
        result("untestable", "mask.drop", "SHOULD", reason="no"),
        result("failed", "mask.drop", "SHOULD", dtype="bfloat16"),
    ]
    whole = complete(of(*results))
    (candidate,) = whole["candidates"]
    counts = {name: wording.count(candidate, name) for name in wording.COLUMNS}
    assert {name: number for name, number in counts.items() if number} == {
        "passed": 1,
        "failed": 2,
        "untestable": 1,
        "n/a": 1,
    }
    assert "2 of 3 MUST clauses failed" in wording.verdict_reason(candidate)
    lines = [line.plain for line in summary(candidate)]
    assert "passed: 1 clause" in lines
    assert any(line.startswith("not applicable: 1 clause ") for line in lines)
    page = VIEWS[0].render(whole)
    assert '<span class="pill fail">2 failed</span>' in page
    assert '<span class="pill na">1 n/a</span>' in page
    assert "| mine | ❌ fails | 1 | 2 | - | 1 | 1 |" in VIEWS[1].render(whole)


def test_a_duration_is_said_alike_in_every_view() -> None:
    """An hour is no 3600.4 s on the terminal, and 60 min on a page."""
    record = complete(of(result(), seconds=3600.4))
    for view in (TERMINAL, *VIEWS[:2]):
        assert "60 min 0 s" in view.render(record), view.name
    assert [wording.seconds(value) for value in (0.25, 4.06, 65)] == [
        "0.25 s",
        "4.1 s",
        "1 min 5 s",
    ]


def test_a_share_of_all_is_said_of_all_alone() -> None:
    """One combination of thousands that did not run is no 100%."""
    coverage = {"strength": 2, "combinations": 9999, "covered": 9998, "impossible": []}
    assert "99.9% of 9,999 pairs" in wording.coverage({"coverage": coverage})
    assert "all 9,999 pairs" in wording.coverage({"coverage": {**coverage, "covered": 9999}})


def test_a_line_is_said_with_its_place() -> None:
    """File, number and text as a compiler says them; what is missing is missing before it."""
    assert wording.said_line({"line": LINE}) == SAID
    assert (
        wording.said_line({"line": {**LINE, "before": True}}) == f"wrong or missing before {SAID}"
    )
    assert wording.said_line({}) == ""


@pytest.mark.parametrize(
    "line",
    [
        3,
        [],
        {},
        {"file": "x.py"},
        {**LINE, "number": True},
        {**LINE, "number": 0},
        {**LINE, "number": 10**30},
        {**LINE, "file": ""},
        {**LINE, "file": None},
    ],
)
def test_what_is_no_line_is_not_said(line: Any) -> None:
    """Alternatives are not checked when a record is read: nothing of another kind is believed."""
    assert wording.blamed_line({"line": line}) is None


def test_an_edited_line_stays_short_and_printable() -> None:
    """A NUL, an escape sequence, line breaks and a million characters do no harm."""
    line = {"file": "x\0\x1b[31m" + "y" * 10**6, "number": 1, "text": "a\nb" * 10**6}
    said = wording.said_line({"line": line})
    assert said.isprintable()
    assert len(said) < 500


def test_a_cause_has_the_line_of_its_failure() -> None:
    """Once, beside the fix, and not in other names that explain as much."""
    (cause,) = record(LINE)["candidates"][0]["causes"]
    assert cause["line"] == LINE
    before = {**LINE, "before": True}
    (cause,) = record(before)["candidates"][0]["causes"]
    assert cause["line"] == before


@pytest.mark.parametrize("name", ["terminal", "html", "markdown", "sarif", "junit", "ctrf"])
def test_every_view_shows_the_line(name: str) -> None:
    """The same words in each."""
    (view,) = [view for view in (TERMINAL, *VIEWS) if view.name == name]
    shown = html.unescape(view.render(record(LINE)))
    assert SAID in " ".join(shown.split())


def test_services_mark_the_line_itself() -> None:
    """SARIF and GitHub point at the line that is blamed, not at the function."""
    (sarif,) = [view for view in VIEWS if view.name == "sarif"]
    (found,) = json.loads(sarif.render(record(LINE)))["runs"][0]["results"]
    place = found["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == LINE["file"]
    assert place["region"] == {"startLine": LINE["number"]}
    (mark,) = all_annotations(complete(record(LINE)))
    assert (mark.file, mark.line) == (LINE["file"], LINE["number"])


def test_junit_has_a_property() -> None:
    """The line of each cause with the name of its mistake."""
    (junit,) = [view for view in VIEWS if view.name == "junit"]
    root = ET.fromstring(junit.render(record(LINE)))  # noqa: S314 (we wrote it)
    properties = [one.get("value") for one in root.iter("property") if one.get("name") == "line"]
    assert properties == [f"scale-missing: {SAID}"]


def caused(name: str, *causes: tuple[str, str]) -> dict[str, Any]:
    """A candidate whose causes have these levels and fixes."""
    return {
        "name": name,
        "causes": [{"name": "n", "level": own, "fix": fix} for own, fix in causes],
    }


def test_what_says_how_to_mend_it_comes_first() -> None:
    """A MUST with a fix, then one without, then all others in their order."""
    every = [
        caused("model", ("MUST", "")),
        caused("#0", ("SHOULD", "a fix")),
        caused("#1", ("MUST", ""), ("MUST", "a fix")),
        caused("#2"),
    ]
    assert [one["name"] for one in wording.sort_by_urgency(every)] == ["#1", "model", "#0", "#2"]


def test_a_statement_is_said_once_beside_the_names_that_complete_it() -> None:
    """The title of a cause names both of two mistakes, and a statement by its kind."""
    stated = "logits: 1/2 times the scores"
    cause = {
        "name": f"{stated}+mask-fill-1e4",
        "text": "the logits are halved; hidden ones are filled",
        "alternatives": [{"name": f"{stated}+mask-fill-100"}, {"name": "logits: scaled by 1/4"}],
    }
    assert wording.cause_title(cause) == (
        "logits+mask-fill-1e4 or logits+mask-fill-100 or logits: scaled by 1/4: the logits are "
        "halved; hidden ones are filled"
    )
