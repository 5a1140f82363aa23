"""Problems near another differ from it in one thing, and are at sizes that nobody has seen."""

from __future__ import annotations

from examples import core, problem

from conformance.clauses.subject import Subject
from conformance.diagnosis.mistakes.named_mistake import SizeRule
from conformance.diagnosis.neighbours import at_unseen_sizes

ODD = SizeRule(("num_heads",), lambda sizes: sizes.num_heads % 2 == 1)


def test_unseen_sizes_meet_the_conditions_and_are_the_next() -> None:
    """Of an odd number of heads, after one and three were seen: five and seven; and twice three."""
    seen = [problem(num_heads=heads).geometry for heads in (1, 3, 4)]
    subject = Subject(core(), "float32")
    near = at_unseen_sizes(subject, problem(num_heads=3), [ODD], seen)
    assert [one.geometry.num_heads for one in near] == [5, 7, 6]


def test_sizes_that_a_candidate_pins_are_not_asked() -> None:
    """No other number of heads is there to be asked."""
    subject = Subject(core(geometry={"num_heads": 3, "num_kv_heads": 3}), "float32")
    base = problem(num_heads=3, num_kv_heads=3)
    assert list(at_unseen_sizes(subject, base, [ODD], [base.geometry])) == []
