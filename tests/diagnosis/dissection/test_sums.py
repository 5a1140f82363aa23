"""What the weights are made into before they meet the values is stated."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from examples import core
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose


def weighed(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A core that makes something of its weights and logits, whatever keys are hidden."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        logits = logits if bias is None else logits + bias
        logits = logits if keep is None else logits.masked_fill(~keep, -math.inf)
        return change(logits.softmax(-1).nan_to_num(0.0), logits) @ value

    return attend


def _shares_so_far(weights: Tensor, _logits: Tensor) -> Tensor:
    total = weights.cumsum(-1)
    return total / total.sum(-1, keepdim=True).clamp_min(1e-30)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda weights, _logits: weights.softmax(-1), "softmax-twice"),
        (lambda _weights, logits: logits.log_softmax(-1), "weights: the logarithm of them"),
        (
            _shares_so_far,
            "weights: the sum of them up to each key, hidden or not, divided by the row's sum",
        ),
    ],
    ids=["softmax", "logarithm", "sums"],
)
def test_what_becomes_of_weights_is_stated_where_keys_are_hidden(
    change: Callable[[Tensor, Tensor], Tensor], name: str
) -> None:
    """A hidden key has what is made of a weight of zero, also in rows without other keys."""
    candidate = core(
        weighed(change),
        masks=["keep", "bias"],
        causal=None,
        features=[],
        empty_rows="zeros",
        dtypes=["float32"],
    )
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == name
    assert entry["fix"]


def test_the_first_terms_of_an_exponential_are_stated() -> None:
    """A Taylor series up to the square, divided by the row's sum."""
    candidate = core(
        weighed(lambda _weights, s: _divided(1.0 + s + s * s / 2.0)),
        masks=[],
        causal=None,
        features=[],
        empty_rows="any",
        dtypes=["float32"],
    )
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert "one, each of them and half of its square, divided by the row's sum" in entry["name"]


def _divided(powers: Tensor) -> Tensor:
    return powers / powers.sum(-1, keepdim=True)
