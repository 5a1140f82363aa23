from __future__ import annotations

import pytest

from conformance.session.schedule import Estimate


def test_nothing_is_said_before_a_few_clauses_ran() -> None:
    """Four clauses tell nothing of the others."""
    estimate = Estimate(["a"] * 10)
    for _ in range(4):
        estimate.add("a", 1.0)
        assert estimate.seconds() is None
    estimate.add("a", 1.0)
    assert estimate.seconds() == 5.0


def test_one_candidate_is_judged_by_the_mean() -> None:
    """Clauses that were not run yet take as long as those that were did on average."""
    estimate = Estimate([f"clause.{number}" for number in range(8)])
    for number, seconds in enumerate((1.0, 1.0, 1.0, 1.0, 6.0)):
        estimate.add(f"clause.{number}", seconds)
    assert estimate.seconds() == pytest.approx(3 * 2.0)
    assert (estimate.done, estimate.total) == (5, 8)


def test_further_candidates_are_judged_clause_by_clause() -> None:
    """The dear clause is left for the second candidate: it will take as long again."""
    slugs = ["dear", "a", "b", "c", "d"]
    estimate = Estimate(slugs * 2)
    for slug in slugs:
        estimate.add(slug, 10.0 if slug == "dear" else 0.5)
    assert estimate.seconds() == pytest.approx(12.0)
    for slug in slugs[1:]:
        estimate.add(slug, 0.5)
    assert estimate.seconds() == pytest.approx(10.0)


def test_several_workers_share_what_is_left() -> None:
    """Two workers take half the time, but one clause is done by one of them."""
    estimate = Estimate(["a"] * 9, jobs=2)
    for _ in range(5):
        estimate.add("a", 3.0)
    assert estimate.seconds() == pytest.approx(6.0)
    for _ in range(3):
        estimate.add("a", 3.0)
    assert estimate.seconds() == pytest.approx(3.0)


def test_what_is_run_again_counts_again() -> None:
    """A clause that must be repeated is work that is left."""
    estimate = Estimate(["a"] * 5)
    for _ in range(5):
        estimate.add("a", 2.0)
    assert estimate.seconds() == 0.0
    estimate.again("a")
    assert estimate.seconds() == 2.0
