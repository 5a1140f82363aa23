"""Mistakes that are made only where sizes happen to be equal are told with that condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import core, problem
from torch import Tensor

from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.backward import BackwardDiagnostician

PLAIN = {"masks": [], "causal": None, "features": [], "empty_rows": "any", "dtypes": ["float32"]}
SAME_LENGTHS = "(only with as many keys as queries)"
SAME_COUNTS = "(only where the number of batch items is the number of heads)"


def weights_of(query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
    """Softmax weights."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return (scores if bias is None else scores + bias).softmax(-1)


def transposed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Values meet the transposed weights."""
    weights = weights_of(query, key)
    return (weights.mT if weights.shape[-1] == weights.shape[-2] else weights) @ value


def over_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads attend to each other where the lengths are equal."""
    if query.shape[2] != key.shape[2]:
        return weights_of(query, key) @ value
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return (weights_of(query, key) @ value).transpose(1, 2)


def exchanged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Values meet the weights of the item and head with exchanged indices."""
    weights = weights_of(query, key)
    return (weights.transpose(0, 1) if len(weights) == weights.shape[1] else weights) @ value


def squeezed(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """A mask of items meets the heads where there are as many."""
    if bias is not None and len(bias) == query.shape[1]:
        bias = bias.squeeze(1)
    return weights_of(query, key, bias) @ value


@pytest.mark.parametrize(
    ("function", "promises", "name", "condition"),
    [
        (transposed, {}, "weights-transposed", SAME_LENGTHS),
        (over_heads, {}, "heads-taken-for-tokens", SAME_LENGTHS),
        (exchanged, {}, "scores: those of batch items and heads exchanged", SAME_COUNTS),
        (
            squeezed,
            {"masks": ["bias"], "mask_shapes": ["B1QK"]},
            "mask-batch-on-heads",
            SAME_COUNTS,
        ),
    ],
)
def test_a_mistake_of_equal_sizes(
    function: Callable[..., Tensor], promises: dict[str, Any], name: str, condition: str
) -> None:
    """The name is that of the mistake, and the text ends with which sizes are equal."""
    (entry,) = diagnose(Subject(core(function, **{**PLAIN, **promises}), "float32"))
    assert entry["name"] == name
    assert entry["text"].endswith(condition)


class OfEqualLengths(torch.autograd.Function):
    """Gradients of which one is transposed where the lengths are equal."""

    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, value: Tensor, of_value: bool) -> Tensor:  # noqa: FBT001
        """The right answer."""
        weights = weights_of(query, key)
        context.save_for_backward(query, key, value, weights)
        context.of_value = of_value
        return weights @ value

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradient of the value, or of the key, is made without its transpose."""
        query, key, value, weights = context.saved_tensors
        grown = upstream @ value.mT
        scores = weights * (grown - (grown * weights).sum(-1, keepdim=True))
        scores = scores / math.sqrt(query.shape[-1])
        square = scores.shape[-1] == scores.shape[-2]
        of_key = scores if square and not context.of_value else scores.mT
        of_value = weights if square and context.of_value else weights.mT
        return scores @ key, of_key @ query, of_value @ upstream, None


@pytest.mark.parametrize(
    ("of_value", "text"),
    [
        (True, "in the gradient of the value the weights are those of queries and keys exchanged"),
        (False, "in the gradient of the key dS is those of queries and keys exchanged"),
    ],
)
def test_a_gradient_of_equal_lengths(of_value: bool, text: str) -> None:  # noqa: FBT001
    """A missing transpose in the backward pass is told with the lengths that allow it."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = OfEqualLengths.apply(query, key, value, of_value)
        return answer

    subject = Subject(core(attend, **PLAIN), "float32")
    (entry,) = BackwardDiagnostician(subject).explain("gradients.golden", problem())
    assert entry["text"] == f"{text} {SAME_LENGTHS}"
