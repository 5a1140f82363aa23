from __future__ import annotations

import math
from typing import Any

import pytest

from conformance.views.html_words import complete, filled, number, worst


def test_nulls_count_as_missing() -> None:
    """A record of another writer may have null where ours has a text, a list or nothing."""
    clause = {"id": "mask.golden", "status": "failed", "reason": None, "diagnosis": None}
    entry = {"name": "mine", "verdict": None, "declaration": None, "clauses": [clause]}
    report = complete({"schema": 1, "tool": None, "candidates": [entry]})
    assert report["tool"]["name"] == "attention-conformance"
    (candidate,) = report["candidates"]
    assert (candidate["verdict"], candidate["declaration"]) == ("inconclusive", {})
    assert (candidate["clauses"][0]["reason"], candidate["clauses"][0]["diagnosis"]) == ("", [])


def test_a_violation_is_completed() -> None:
    """What a page shows of a violation is there, empty or not."""
    clause = {"id": "a.b", "status": "failed", "violation": {"message": None}, "margin": "inf"}
    report = complete({"candidates": [{"name": "mine", "verdict": "fails", "clauses": [clause]}]})
    (completed,) = report["candidates"][0]["clauses"]
    assert completed["violation"]["message"] == ""
    assert completed["violation"]["measured"] == {}
    assert completed["margin"] == math.inf


def test_the_given_record_stays_as_it_is() -> None:
    """Other views get the same record."""
    clause = {"id": "a.b", "status": "passed", "margin": "nan", "reason": None}
    given = {"candidates": [{"name": "mine", "verdict": "conforms", "clauses": [clause]}]}
    complete(given)
    assert clause == {"id": "a.b", "status": "passed", "margin": "nan", "reason": None}


@pytest.mark.parametrize(
    ("value", "read"),
    [("inf", math.inf), ("-inf", -math.inf), (2, 2.0), (True, None), (None, None), ("x", None),
     ([1.0], None)],
)  # fmt: skip
def test_numbers(value: Any, read: float | None) -> None:
    """Infinities are texts in a record; truth values and lists are no numbers."""
    assert number(value) == read


def test_the_worst_margin() -> None:
    """NaN is the worst of all; without margins there is none."""
    margin = worst([0.5, math.nan, 3.0, None])
    assert margin is not None
    assert math.isnan(margin)
    assert worst([0.5, 3.0, None]) == 3.0
    assert worst([None]) is None


def test_filled() -> None:
    """Given values win, defaults stand in, and what is no mapping gives nothing."""
    assert filled({"a": 1, "b": 2}, {"a": 5, "b": None, "c": 6}) == {"a": 5, "b": 2, "c": 6}
    assert filled({"a": 1}, "text") == {"a": 1}
