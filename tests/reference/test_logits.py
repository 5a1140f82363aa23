"""The order of scale, cap, modification, biases and mask."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from golden_problems import Shape, core_case
from torch import Tensor

from reference import STANDARD, attend, modify

SCORES = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).double()


def test_score_mod_can_hide_keys() -> None:
    """Minus infinity from it is a hidden key: causality written as one is causality."""
    inputs = core_case(Shape(query_length=4)).inputs

    def causal(score: Tensor, _b: Any, _h: Any, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(query >= key, score, -math.inf)

    found = attend(*inputs, semantics=STANDARD.replace(score_mod=causal))
    expected = attend(*inputs, causal=True)
    assert torch.equal(found.output, expected.output)
    assert torch.equal(found.allowed, expected.allowed)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda *_: 1.0, TypeError, "score_mod returned a float, not a torch.Tensor"),
        (
            lambda score, *_: score[..., :2],
            ValueError,
            r"score_mod returned shape \[2, 3, 4, 2\] for scores \[2, 3, 4, 5\]",
        ),
    ],
)
def test_wrong_score_mod_is_refused(change: Any, error: type[Exception], message: str) -> None:
    """What it returns must be a tensor that broadcasts to the scores."""
    with pytest.raises(error, match=message):
        modify(SCORES, STANDARD.replace(score_mod=change))
