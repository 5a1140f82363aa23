from __future__ import annotations

from typing import Any

import pytest

from conformance.views.verdict_marks import GREEN, overall
from conformance.views.wording import counted


def run(*verdicts: str, **more: Any) -> dict[str, Any]:
    """A record with these verdicts."""
    entries = [
        {"name": f"c{n}", "verdict": word, "verdict_reason": f"because {n}", "clauses": []}
        for n, word in enumerate(verdicts)
    ]
    return {"candidates": entries, **more}


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        (["conforms"], "conforms"),
        (["conforms", "conforms-with-deviations"], "conforms-with-deviations"),
        (["conforms-up-to-gauge", "conforms-with-deviations"], "conforms-up-to-gauge"),
        (["conforms", "inconclusive"], "inconclusive"),
        (["inconclusive", "fails"], "fails"),
        (["fails", "error", "conforms"], "error"),
    ],
)
def test_the_worst_verdict_is_the_runs(verdicts: list[str], word: str) -> None:
    """One candidate that does not conform is enough, whoever else does."""
    summary = overall(run(*verdicts))
    assert summary.word == word
    assert summary.green == (word in GREEN)


def test_a_verdict_nobody_knows_is_not_green() -> None:
    """A word of a later version is no success."""
    summary = overall(run("conforms", "marvellous"))
    assert not summary.green
    assert summary.word == "marvellous"


def test_nothing_checked_is_inconclusive() -> None:
    """No candidate is no success."""
    summary = overall(run())
    assert (summary.word, summary.green) == ("inconclusive", False)


def test_an_interrupted_run_is_never_green() -> None:
    """What was done before may all have passed; what failed before it stays failed."""
    summary = overall(run("conforms", interrupted=True))
    assert (summary.word, summary.green) == ("interrupted", False)
    assert overall(run(interrupted=True)).word == "interrupted"
    assert overall(run("conforms", "fails", interrupted=True)).word == "fails"


def test_a_run_cut_by_its_limit_is_never_green() -> None:
    """What was asked before the limit may all have passed; what failed before it stays failed."""
    limit = {"limit": {"seconds": 60.0, "reached": True, "not_run": 7}}
    summary = overall(run("conforms", **limit))
    assert (summary.word, summary.green) == ("inconclusive", False)
    assert "7 clauses were not run" in summary.reason
    assert overall(run("fails", "conforms", **limit)).word == "fails"
    assert "the limit of 60 s was reached" in overall(run(**limit)).reason


def test_stale_expectations_fail_a_green_run() -> None:
    """An expectation that nothing answers to is red although every candidate conforms."""
    summary = overall(run("conforms", stale_expectations=[{"clause": "mask.golden"}]))
    assert (summary.word, summary.green) == ("fails", False)
    assert "1 expected failure" in summary.reason


def test_the_reason_names_who_and_why() -> None:
    """Of one candidate its reason; of several their names, of many the first ones."""
    assert overall(run("fails")).reason == "because 0"
    assert overall(run("conforms", "fails")).reason == "1 of 2 candidates: c1"
    assert overall(run(*["fails"] * 9)).reason == "9 of 9 candidates: c0, c1, c2 and 6 more"


def test_numbers_agree_with_their_noun() -> None:
    """One candidate, two candidates, a thousand with a comma."""
    assert [counted(n, "row") for n in (1, 2, 1000)] == ["1 row", "2 rows", "1,000 rows"]
