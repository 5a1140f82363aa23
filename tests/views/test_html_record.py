from __future__ import annotations

import math

from conformance.views.html_words import complete


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
