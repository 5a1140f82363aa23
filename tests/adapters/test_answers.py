"""Which of the tensors that a call returns is the output, in whatever they lie."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.adapters.answers import output_of, parts_of, weights_in

TOKENS = torch.zeros(2, 5, 12)
OUTPUT = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.full((2, 3, 5, 7), 1 / 7)
AVERAGED = torch.full((2, 5, 7), 1 / 7)
CACHE = (torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 5, 4))


@dataclass
class Answer:
    """An answer with names."""

    last_hidden_state: Tensor
    attentions: Tensor


@pytest.mark.parametrize(
    "answer",
    [
        OUTPUT,
        (OUTPUT, None),
        (OUTPUT, WEIGHTS),
        (WEIGHTS, OUTPUT),
        (AVERAGED, OUTPUT),
        [OUTPUT, CACHE],
        (CACHE, (OUTPUT, WEIGHTS)),
        {"attn": WEIGHTS, "out": OUTPUT},
        {"hidden": [None, OUTPUT]},
        Answer(OUTPUT, WEIGHTS),
        SimpleNamespace(attentions=AVERAGED, out=OUTPUT),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_the_output_is_found_in_any_place(answer: Any) -> None:
    """It has a row for each query, and its rows are no weights."""
    assert output_of(answer, TOKENS) is OUTPUT


def test_weights_are_those_that_sum_to_one() -> None:
    """A cache that stands before them is none."""
    assert weights_in((OUTPUT, CACHE, WEIGHTS), OUTPUT) is WEIGHTS
    assert weights_in((OUTPUT, None), OUTPUT) is None


def test_an_answer_without_tensors_is_left_as_it_is() -> None:
    """What is returned then is told, and not an error of the harness."""
    assert output_of((None, "text"), TOKENS) == (None, "text")
    assert output_of(None, TOKENS) is None


def test_each_part_can_be_written() -> None:
    """The expression of a part takes it out of the answer."""
    answer = {"a": [None, (OUTPUT,)], 3: Answer(OUTPUT, WEIGHTS)}
    for shown, part in parts_of(answer):
        assert eval(shown, {"answer": answer}) is part  # noqa: S307 (text of the harness)
    assert len(list(parts_of(answer))) == 3
