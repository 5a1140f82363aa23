"""The order of the clauses that ``benchmarks/first_failure.py`` computes."""

from __future__ import annotations

import pytest

from benchmarks import first_failure
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


def test_nothing_to_time_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No sample is a bad argument; where nothing is caught there is no median."""
    monkeypatch.setattr("sys.argv", ["first_failure", "--sample", "0"])
    with pytest.raises(SystemExit) as ended:
        first_failure.main()
    assert ended.value.code == 2
    monkeypatch.setattr("sys.argv", ["first_failure", "--sample", "1"])
    monkeypatch.setattr(first_failure, "sampled", lambda *_: [])
    monkeypatch.setattr(first_failure, "entries", lambda *_: [])
    first_failure.main()
    assert capsys.readouterr().out == "0 of 0 caught\n"
