from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from records import expected, result

from conformance.base.expected import Place
from conformance.base.results import ClauseResult, Violation
from conformance.session.expectations import is_announced, judge

TODAY = date(2030, 6, 15)
PLACE = Place(file="known.toml", line=7, keys={"kind": 9, "expires": 10, "diagnosis": 11})


def failed(*names: str, kind: str = "value", **more: Any) -> ClauseResult:
    """A failure that is diagnosed as some mistakes."""
    diagnosis = [{"name": name, "text": "", "confidence": 1.0} for name in names]
    violation = Violation(kind=kind, message="off by 1")
    return result("failed", violation=violation, diagnosis=diagnosis, **more)


@pytest.mark.parametrize(
    ("judged_result", "status"),
    [
        (failed("mask-inverted"), "expected-failure"),
        (failed("mask-ignored", "mask-inverted"), "expected-failure"),
        (failed("mask-ignored"), "failed"),
        (failed("mask-inverted+scale-missing"), "failed"),
        (failed(), "failed"),
        (failed("mask-inverted", kind="raised"), "failed"),
    ],
)
def test_a_named_diagnosis_must_be_found(judged_result: ClauseResult, status: str) -> None:
    """Another mistake, a pair or none is another failure; one of several that fit is enough."""
    entry = expected(diagnosis="mask-inverted")
    assert judge(judged_result, "mine", [entry], today=TODAY).status == status


def test_another_diagnosis_is_reported_with_the_line_to_change() -> None:
    """The reason names both diagnoses, and the line of the key in its file."""
    entry = expected(diagnosis="mask-inverted", place=PLACE)
    assert judge(failed("mask-ignored"), "mine", [entry], today=TODAY).reason == (
        "not the expected failure (known): it is diagnosed as mask-ignored, not mask-inverted; "
        "repair it, or write diagnosis = 'mask-ignored' in line 11 of known.toml"
    )


def test_another_kind_is_reported_with_the_line_to_change() -> None:
    """So is another kind; an entry without that key is named by its own line."""
    entry = expected(kind="shape", place=Place(file="known.toml", line=7))
    assert judge(failed(), "mine", [entry], today=TODAY).reason == (
        "not the expected failure (known): it is of kind 'value', not 'shape'; "
        "repair it, or write kind = 'value' in line 7 of known.toml"
    )


@pytest.mark.parametrize(
    ("last", "status"),
    [("2030-06-14", "failed"), ("2030-06-15", "expected-failure"), (TODAY, "expected-failure")],
)
def test_the_last_day_still_counts(last: Any, status: str) -> None:
    """A failure is accepted through its last day, and no longer."""
    assert judge(failed(), "mine", [expected(expires=last)], today=TODAY).status == status


def test_an_expired_expectation_is_reported_with_the_line_to_change() -> None:
    """The reason says until when it was accepted, what day it is and which line holds the day."""
    entry = expected(expires=date(2030, 6, 1), place=PLACE)
    assert judge(failed(), "mine", [entry], today=TODAY).reason == (
        "no expected failure any more (known): it was accepted until 2030-06-01 only, and today is "
        "2030-06-15; repair it, or give it a later day in line 10 of known.toml"
    )


def test_one_that_holds_is_enough() -> None:
    """Another expectation than an expired one may cover the failure."""
    entries = [expected(expires=date(2030, 6, 1)), expected("mask.*")]
    assert judge(failed(), "mine", entries, today=TODAY).status == "expected-failure"


def test_a_pass_is_reported_with_the_line_to_drop() -> None:
    """An unexpected pass says which entry of which file is to go."""
    judged = judge(result(), "mine", [expected(place=PLACE)], today=TODAY)
    assert judged.status == "unexpected-pass"
    assert judged.reason.endswith("drop the expectation in line 7 of known.toml")


def test_a_device_restricts() -> None:
    """What is expected on one device is not on another."""
    entry = expected(device="cuda*")
    assert judge(failed(device="cuda:1"), "mine", [entry], today=TODAY).status == "expected-failure"
    assert judge(failed(), "mine", [entry], today=TODAY).status == "failed"


@pytest.mark.parametrize(
    ("entry", "announced"),
    [
        (expected(kind="shape"), True),
        (expected(expires=date(2030, 6, 1)), True),
        (expected("mask.*", expires=date(2030, 6, 1)), True),
        (expected("mask.*", kind="shape"), False),
        (expected("shape.output"), False),
    ],
)
def test_announced(entry: Any, announced: bool) -> None:  # noqa: FBT001 (a table)
    """A clause that is named, or a failure past its day, is announced; the rest of a glob not."""
    judged = judge(failed(), "mine", [entry], today=TODAY)
    assert is_announced(judged, "mine", [entry]) is announced
