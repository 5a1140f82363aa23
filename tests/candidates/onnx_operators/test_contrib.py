from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from onnx_calls import assert_agrees, heads, keep_some, normal
from torch import Tensor

from candidates.onnx_operators import on_contrib
from conformance import Candidate

SAME_HEADS: dict[str, Any] = {"num_heads": (4, 4)}
SQUARE: dict[str, Any] = {"sizes": (8, 8)}
PADDING = [
    on_contrib.multi_head_attention_padding,
    on_contrib.multi_head_attention_lowest_fill,
]
GROUPED = [on_contrib.group_query_attention, on_contrib.group_query_attention_lengths]


def each(*candidates: Candidate) -> Any:
    return pytest.mark.parametrize("candidate", candidates, ids=lambda one: one.name)


@each(*PADDING)
@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 5)])
def test_padding_masks_hide_keys(candidate: Candidate, shape: tuple[int, ...]) -> None:
    """A table of keys, or one for each query, becomes the operator's integers."""
    keep = keep_some(*shape)
    wanted = keep[:, None, None] if keep.dim() == 2 else keep[:, None]
    assert_agrees(_given(candidate, keep), heads(**SAME_HEADS), keep=wanted)


def _given(candidate: Candidate, keep: Tensor) -> Candidate:
    """The candidate with a mask of the operator's shape, whatever shape the golden wants."""

    def function(*tensors: Tensor, **_: Any) -> Any:
        return candidate(*tensors, keep=keep)

    return dataclasses.replace(candidate, function=function)


@each(*PADDING)
@pytest.mark.parametrize("lengths", [[5, 5], [5, 2], [1, 4]])
def test_lengths_hide_the_end(candidate: Candidate, lengths: list[int]) -> None:
    """Lengths for each item, alone or cumulated with where queries and keys begin."""
    assert_agrees(candidate, heads(**SAME_HEADS), lengths=torch.tensor(lengths))


@each(on_contrib.multi_head_attention_bias)
@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (1, 4, 3, 5), (2, 1, 3, 5), (1, 1, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_biases_broadcast(candidate: Candidate, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A bias is added, over items and heads where it has one of them."""
    bias = normal(*shape, seed=6, dtype=dtype)
    assert_agrees(candidate, heads(**SAME_HEADS, dtype=dtype), bias=bias, scale=0.3)


@each(on_contrib.multi_head_attention_causal)
@pytest.mark.parametrize("lengths", [(4, 4), (5, 3)])
def test_unidirectional_is_right_with_enough_queries(
    candidate: Candidate, lengths: tuple[int, int]
) -> None:
    """With as many queries as keys, or more, causality is aligned with the first key."""
    assert_agrees(candidate, heads(lengths, **SAME_HEADS), causal=True)


@each(on_contrib.multi_head_attention_past)
def test_a_past_comes_before_the_queries(candidate: Candidate) -> None:
    """With a cache causality is aligned with the last key."""
    assert_agrees(candidate, heads(**SAME_HEADS, **SQUARE), causal=True, scale=0.3)


@each(*GROUPED)
@pytest.mark.parametrize("use", [{}, {"scale": 0.3}, {"softcap": 0.7}, {"causal": True}], ids=str)
def test_grouped_heads_attend(candidate: Candidate, use: dict[str, Any]) -> None:
    """As many keys as queries, each option."""
    assert_agrees(candidate, heads((4, 4), **SQUARE), **use)


@each(on_contrib.group_query_attention)
def test_grouped_heads_take_a_bias_and_return_weights(candidate: Candidate) -> None:
    """The bias is added to the scaled products, and weights are those after the softmax."""
    bias = normal(2, 1, 4, 4, seed=7)
    tensors = heads((4, 4), **SQUARE)
    assert_agrees(candidate, tensors, bias=bias, causal=True)
    output, weights = candidate(*tensors, bias=bias, return_weights=True)
    assert weights.shape == (2, 4, 4, 4)
    weighed = weights @ tensors[2].repeat_interleave(2, dim=1)
    assert float((weighed - output).abs().max()) <= 32 * torch.finfo(torch.float32).eps


@each(on_contrib.group_query_attention_lengths)
@pytest.mark.parametrize("lengths", [[4, 2], [1, 4], [2, 2]])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_take_lengths(
    candidate: Candidate, lengths: list[int], *, causal: bool
) -> None:
    """``seqlens_k`` is one less than the length, for each item."""
    flags: dict[str, Any] = {"causal": True} if causal else {}
    assert_agrees(candidate, heads((4, 4), **SQUARE), lengths=torch.tensor(lengths), **flags)


@each(on_contrib.group_query_attention_decoding)
def test_one_query_decodes_with_a_past(candidate: Candidate) -> None:
    """The newest key is the query's own, and it sees all of them."""
    assert_agrees(candidate, heads((1, 6), **SQUARE), causal=True)
    assert_agrees(candidate, heads((1, 6), **SQUARE), bias=normal(2, 4, 1, 6, seed=8))
