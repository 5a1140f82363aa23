"""The soak of correct candidates: it counts examples, tells accusations, and keeps margins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import rounds_of, soak_in_full
from benchmarks.soak.journal import Journal
from benchmarks.soak.tasks import Task, perform
from conformance.base.profile import PROFILES
from conformance.errors import UsageError

PROFILE = dataclasses.replace(PROFILES["quick"], examples=4, reductions=0)

BROKEN = """
import conformance


@conformance.core(empty_rows="zeros")
def unscaled(query, key, value):
    return (query @ key.mT).softmax(-1) @ value
"""


def test_a_broken_candidate_is_accused(tmp_path: Path) -> None:
    """One round over a wrong candidate gives an accusation that says what reproduces it."""
    target = tmp_path / "broken_attention.py"
    target.write_text(BROKEN, encoding="utf-8")
    task = Task(targets=(str(target),), name="unscaled", profile=PROFILE, seed=5)
    outcome = perform(task)
    assert any(line.startswith("unscaled seed 5 numerics.golden") for line in outcome.accusations)
    assert outcome.examples.total() > outcome.judged > 10
    assert "state" in outcome.margins


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
