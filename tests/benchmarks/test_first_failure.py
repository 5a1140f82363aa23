"""The order of the clauses that ``benchmarks/first_failure.py`` computes."""

from __future__ import annotations

import pytest

from benchmarks import first_failure
from benchmarks.first_failure import Matrix, soonest
from conformance.tools.teeth.jobs import TeethOptions, entries


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


@pytest.mark.parametrize(
    "way", ["check", "judge", pytest.param("command", marks=pytest.mark.nightly)]
)
def test_each_way_tells_the_same_first_failure(way: str) -> None:
    """A mistake is caught and named in this process, by a judge and by the command."""
    options = TeethOptions(targets=(), mistakes=("GroupsTiled",), thorough=False)
    (entry,) = [one for one in entries(options, lambda *_: None) if not one.correct]
    with first_failure.WAYS[way]() as asked:
        row = first_failure.first_failure(entry, asked)
    assert (row.caught, row.clause, row.cause) == (True, "mask.causal-combined", "groups-tiled")
    assert row.processor > 0.0
