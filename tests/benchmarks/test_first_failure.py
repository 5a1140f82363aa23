"""The order of the clauses that ``benchmarks/first_failure.py`` computes."""

from __future__ import annotations

from benchmarks.first_failure import Matrix, soonest


def test_what_finds_mistakes_that_no_first_example_shows_comes_behind_the_first_few() -> None:
    """Three clauses are asked whole, and what a first example shows is found in any order."""
    failed, passed = (True, 0.1, 1), (False, 0.1, 9)
    shown: Matrix = {}
    for number in range(4):
        for mistake in range(9 - number):
            shown[f"{number} {mistake}"] = {f"mask.{one}": passed for one in range(5)}
            shown[f"{number} {mistake}"][f"mask.{number}"] = failed
    shown["late"] = {**shown["0 0"], "mask.0": passed, "mask.4": (True, 0.4, 7)}
    assert soonest(shown) == ["mask.0", "mask.1", "mask.2", "mask.4", "mask.3"]
