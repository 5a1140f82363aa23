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


def test_indices_of_score_mod() -> None:
    """Each index counts along its own axis, from zero."""
    point = STANDARD.replace(
        score_mod=lambda s, b, h, q, k: 0 * s + 1000 * b + 100 * h + 10 * q + k
    )
    modified = modify(SCORES, point)
    assert float(modified[1, 2, 3, 4]) == 1234.0
    assert modified.shape == SCORES.shape


def test_without_score_mod_nothing_changes() -> None:
    """The standard point hands the scores on as they are."""
    assert modify(SCORES, STANDARD) is SCORES


def test_score_mod_comes_after_the_cap_and_before_the_bias() -> None:
    """Doubling it doubles the capped scores, and leaves the bias as it is."""
    inputs = core_case(Shape()).inputs
    bias = torch.randn(2, 4, 3, 4, dtype=torch.float64)
    point = STANDARD.replace(score_mod=lambda score, *_: 2.0 * score)
    found = attend(*inputs, bias=bias, softcap=0.5, semantics=point)
    assert torch.equal(found.modified, 2.0 * found.capped)
    assert torch.equal(found.logits, 2.0 * found.capped + bias)


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
