from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st
from records import result
from view_records import EVERY, RECORDS, SCHEMAS, SHOULD_FAILED, of

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
