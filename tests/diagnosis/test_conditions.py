"""A mistake keeps its name whatever else is declared, and "only with X" is said where X decides."""

from __future__ import annotations

from conformance.diagnosis.answer_facts import never_with, only_with
from conformance.diagnosis.conditions import CONDITIONS


def test_conditions_need_answers_that_differ_in_them_alone() -> None:
    """Without right answers to compare with, no condition is said to spare or to be needed."""
    assert len({one.name for one in CONDITIONS}) == len(CONDITIONS)
    assert only_with([], []) == []
    assert never_with([], []) == []
