from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st
from records import result
from view_records import EVERY, FAILED, RECORDS, SCHEMAS, SHOULD_FAILED, of

from conformance.base.results import Violation
from conformance.views.junit import render_junit

SCHEMA = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


def read(report: dict[str, Any]) -> ET.Element:
    """The root of the document, which the schema of Jenkins' xUnit plugin accepts."""
    text = render_junit(report)
    SCHEMA.validate(text)
    return ET.fromstring(text)  # noqa: S314 (we wrote it)


@pytest.mark.parametrize("name", RECORDS)
def test_documents_are_valid(name: str) -> None:
    """Every record gives a valid document, whose counts are those of its cases."""
    for suite in read(RECORDS[name]).iter("testsuite"):
        cases = list(suite.iter("testcase"))
        assert suite.get("tests") == str(len(cases))
        for attribute, tag in (
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            assert suite.get(attribute) == str(len(list(suite.iter(tag))))


def test_statuses_are_mapped_honestly() -> None:
    """Untestable is a failure, a harness error an error, a tolerated SHOULD neither."""
    (suite,) = read(of(*EVERY)).iter("testsuite")
    children = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert children == {
        "mask.golden[float32]": ["failure"],
        "shape.output[float32]": [],
        "mask.bias[float32]": ["skipped"],
        "mask.strided[float32]": ["skipped"],
        "mask.causal[float32]": ["failure"],
        "mask.window[float32]": ["failure"],
        "numerics.golden[float32]": ["error"],
        "mask.no-leak[float32]": ["skipped"],
        "mask.leak[float32]": ["skipped"],
        "mask.golden[bfloat16-cuda:0]": ["failure"],
    }
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("4", "1", "4")
    assert suite.get("timestamp") == "2026-11-21T23:34:30"


def test_a_failure_tells_everything() -> None:
    """Kind, message, requirement, diagnosis and how to replay it."""
    (case,) = read(of(FAILED)).iter("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == "value"
    assert failure.get("message") == "scale-missing (no scale): off by 1 at [0, 0]"
    assert "requires: A masked key is absent." in str(failure.text)
    assert "diagnosis: scale-missing: no scale\nfix: divide by it" in str(failure.text)
    assert "conformance replay 'REPORT.json#mine/mask.golden'" in str(failure.text)


def test_suites_tell_verdict_level_and_status() -> None:
    """The facts are the suite's properties: cases can have none by the schema."""
    (suite,) = read(of(*EVERY)).iter("testsuite")
    facts = {element.get("name"): element.get("value") for element in suite.iter("property")}
    assert facts["verdict"] == "error"
    assert facts["mask.golden[float32]"] == "MUST failed"
    assert facts["mask.leak[float32]"] == "SHOULD untestable"
    assert facts["environment.torch"] == "2.6"


def test_a_run_without_clauses_is_red() -> None:
    """What no clause says is a failing case of its own: a report must not look green."""
    for name in ("nothing ran", "no candidates", "interrupted"):
        assert list(read(RECORDS[name]).iter("failure")), name
    assert not list(read(RECORDS["conforms"]).iter("failure"))


def test_a_strict_run_fails_on_a_should() -> None:
    """Where a SHOULD reddens the run, it is a failure here."""
    assert not list(read(of(result(), SHOULD_FAILED)).iter("failure"))
    assert list(read({**of(result(), SHOULD_FAILED), "fail_on": "should"}).iter("failure"))


@given(st.text())
def test_any_message_is_held(text: str) -> None:
    """XML can hold whatever a candidate raises."""
    report = of(result("failed", violation=Violation(kind="raised", message=text)))
    (failure,) = read(report).iter("failure")
    assert failure.get("type") == "raised"
