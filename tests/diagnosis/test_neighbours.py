"""Problems near another differ from it in one thing, and are at sizes that nobody has seen."""

from __future__ import annotations

import pytest
import torch
from examples import BARE_FLOAT32, core, problem
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis.battery import answer_to
from conformance.diagnosis.mistakes.named_mistake import SizeRule
from conformance.diagnosis.neighbours import draw_unseen_sizes, right_with_fewer

ODD = SizeRule(("num_heads",), lambda sizes: sizes.num_heads % 2 == 1)


def test_unseen_sizes_meet_the_conditions_and_are_the_next() -> None:
    """Of an odd number of heads, after one and three were seen: five and seven; and twice three."""
    seen = [problem(num_heads=heads).geometry for heads in (1, 3, 4)]
    subject = Subject(core(), "float32")
    near = draw_unseen_sizes(subject, problem(num_heads=3), [ODD], seen)
    assert [one.geometry.num_heads for one in near] == [5, 7, 6]


def test_sizes_that_a_candidate_pins_are_not_asked() -> None:
    """No other number of heads is there to be asked."""
    subject = Subject(core(geometry={"num_heads": 3, "num_kv_heads": 3}), "float32")
    base = problem(num_heads=3, num_kv_heads=3)
    assert list(draw_unseen_sizes(subject, base, [ODD], [base.geometry])) == []


@pytest.mark.parametrize(
    ("divides", "said"),
    [(1, ["the plainest goes right with 100 keys, and wrong with 101"]), (16, [])],
)
def test_the_size_from_which_on_a_call_goes_wrong(divides: int, said: list[str]) -> None:
    """It is found by halving; where a size between is refused, none is said to go wrong."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys = key.shape[2]
        if keys > 16 and keys % divides:
            raise ValueError
        weights = torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)
        return weights @ value + (1.0 if keys > 100 else 0.0)

    subject = Subject(core(attend, **BARE_FLOAT32), "float32")
    wrong = problem(query_length=5, key_length=208)
    answer = answer_to(subject, subject.inputs(wrong), wrong)
    assert list(right_with_fewer(subject, answer, answer_to)) == said
