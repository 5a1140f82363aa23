"""The soak of correct candidates: it counts examples, tells accusations, and keeps margins."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import main, rounds_of, soak_in_full
from benchmarks.soak.journal import Journal
from benchmarks.soak.tally import Tally, report
from benchmarks.soak.tasks import KNOWN, Outcome, Task, is_accusation, perform
from conformance.base.profile import PROFILES
from conformance.base.results import ClauseResult
from conformance.errors import UsageError

PROFILE = dataclasses.replace(PROFILES["quick"], examples=4, reductions=0)

BROKEN = """
import conformance


@conformance.core(empty_rows="zeros")
def unscaled(query, key, value):
    return (query @ key.mT).softmax(-1) @ value
"""


def result(status: str, slug: str = "mask.golden") -> ClauseResult:
    """The outcome of one clause."""
    return ClauseResult(id=slug, family="mask", level="SHOULD", status=status)  # type: ignore[arg-type]  # a status


def test_a_broken_candidate_is_accused(tmp_path: Path) -> None:
    """One round over a wrong candidate gives an accusation that says what reproduces it."""
    target = tmp_path / "broken_attention.py"
    target.write_text(BROKEN, encoding="utf-8")
    task = Task(targets=(str(target),), name="unscaled", profile=PROFILE, seed=5)
    outcome = perform(task)
    assert any(line.startswith("unscaled seed 5 numerics.golden") for line in outcome.accusations)
    assert outcome.examples.total() > outcome.judged > 10
    assert "state" in outcome.margins


@pytest.mark.parametrize("status", ["failed", "untestable", "error"])
def test_what_is_an_accusation(status: str) -> None:
    """A failure of any level, an untestable clause and an error are; what is announced is not."""
    assert is_accusation(result(status))
    assert not is_accusation(result("expected-failure"))
    assert not is_accusation(result("passed"))


def test_an_announcement_that_goes_stale_is_an_accusation() -> None:
    """Unless it is one of this benchmark's own, which speak of many candidates at once."""
    assert is_accusation(result("unexpected-pass"))
    assert not is_accusation(result("unexpected-pass", KNOWN[0].clause))


def test_each_dtype_must_have_its_examples() -> None:
    """All together or, with ``each``, as many in every dtype; one in float64 counts for ten."""
    tally = Tally(by_dtype=Counter({"float32": 70, "float16": 50, "float64": 5}))
    assert tally.examples == 125
    assert tally.suffices(125, each=False)
    assert not tally.suffices(126, each=False)
    assert tally.suffices(50, each=True)
    assert not tally.suffices(51, each=True)
    assert not Tally().suffices(1, each=True)


def test_a_named_dtype_without_examples_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no candidate was judged in is not passed over, nor waited for."""
    tally = Tally(by_dtype=Counter({"float32": 70, "float16": 0}))
    assert tally.lacking(["float32", "float16", "bfloat16"]) == ["float16", "bfloat16"]
    assert tally.lacking(None) == []
    words = ["--seeds", "1", "--dtype", "float32", "--dtype", "float64", "--minutes", "0"]
    journal = ["--journal", str(tmp_path / "journal.jsonl"), "--jobs", "1"]
    monkeypatch.setattr("sys.argv", ["soak", *words, *journal])
    monkeypatch.setattr("benchmarks.soak.__main__.soak_in_full", lambda *_, **__: tally)
    assert main() == 1
    assert "Error: no candidate was judged in float64" in capsys.readouterr().err


def test_the_largest_margin_of_a_family_is_reported() -> None:
    """The page names the margin, its candidate and its seed, and each accusation."""
    tally = Tally()
    for margin in (0.2, 0.4, 0.3):
        task = Task(targets=(), name="mine", profile=PROFILE, seed=7)
        outcome = Outcome(
            task=task,
            judged=2,
            examples=Counter({"float32": 60, "float64": 20}),
            accusations=("mine seed 7 mask.golden",) if margin == 0.3 else (),
            margins={"mask": (margin, f"place of {margin}")},
        )
        tally.add(outcome)
    options = argparse.Namespace(
        seed=7,
        profile="quick",
        problems=None,
        jobs=2,
        each=True,
        examples=500,
        dtypes=["float32", "float64"],
        targets=["mine.py"],
        seeds=None,
        parts=1,
        rounds=None,
        shard="1/1",
    )
    page = report(tally, options, number=3, seconds=1.0)
    assert "| mask | 0.400 | place of 0.4 |" in page
    assert "240 examples" in page
    assert "180 in float32, 60 in float64" in page
    assert "--seed 7 --each --examples 500 --dtype float32 --dtype float64 mine.py`" in page
    assert "**1 false alarms.**" in page
    assert "- mine seed 7 mask.golden" in page


@pytest.mark.nightly  # no benchmark decides a verdict
def test_a_soak_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """Parts and seeds cover every clause once; what the journal knows is not asked again."""
    target = tmp_path / "broken_attention.py"
    target.write_text(BROKEN, encoding="utf-8")
    rounds = list(rounds_of((str(target),), PROFILE, range(2), 30))
    assert {(task.seed, task.part) for (task,) in rounds} == {
        (seed, part) for seed in range(2) for part in range(30)
    }
    file = tmp_path / "journal.jsonl"
    first = soak_in_full(rounds[:2], 1, Journal(file))
    lines = file.read_text(encoding="utf-8")
    again = soak_in_full(rounds[:2], 1, Journal(file))
    assert file.read_text(encoding="utf-8") == lines
    assert (first.runs, first.planned) == (2, 2)
    assert again == first
    whole = perform(dataclasses.replace(rounds[0][0], parts=1, part=0))
    assert 0 < first.judged < whole.judged


@pytest.mark.parametrize("cut", ['{"ta', '{"task": "two"}'])
def test_a_line_that_no_soak_wrote_is_refused(tmp_path: Path, cut: str) -> None:
    """A line that was cut off, or lacks what a task showed: it says which line to remove."""
    file = tmp_path / "journal.jsonl"
    whole = (
        '{"task": "one", "judged": 1, "examples": {}, "accusations": [], "margins": {}, '
        '"seconds": 1.0, "commit": "abc"}\n'
    )
    file.write_text(whole + cut, encoding="utf-8")
    with pytest.raises(UsageError, match=r"journal\.jsonl:2 is no line of a soak's journal"):
        Journal(file)
