"""Which problems go wrong is said as far as no answer contradicts it, odd and even sizes too."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose

PROMISES = {
    "masks": ["bias"],
    "causal": None,
    "features": [],
    "empty_rows": "any",
    "dtypes": ["float32"],
}


def strange_where(holds: Callable[[Tensor, Tensor], bool]) -> Callable[..., Tensor]:
    """A core whose weights are no function that is known where sizes meet a condition."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = (scores if bias is None else scores + bias).softmax(-1)
        if holds(query, key):
            weights = weights.pow(1.3) + 0.01 * torch.arange(key.shape[2])
        return weights @ value

    return attend


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        (lambda _query, key: key.shape[2] % 2 == 1, "where the number of keys is odd"),
        (lambda query, _key: query.shape[2] % 2 == 0, "where the number of queries is even"),
        (lambda query, _key: query.shape[3] % 4 != 0, "where 4 does not divide the head size"),
    ],
)
def test_plain_sizes_that_decide_are_said(
    holds: Callable[[Tensor, Tensor], bool], words: str
) -> None:
    """What tells all wrong problems from right ones is said, and no coincidence beside it."""
    (entry,) = diagnose(Subject(core(strange_where(holds), **PROMISES), "float32"))
    assert f"problems go wrong, only those {words};" in entry["text"]
    assert entry["facts"]["never_with"] == []
