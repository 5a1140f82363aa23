from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from onnx_calls import assert_agrees, heads, keep_some, normal
from torch import Tensor

from candidates.onnx_operators import function_body, on_onnxruntime, on_reference
from conformance import Candidate

KERNEL = on_onnxruntime.attention
REFERENCE = on_reference.reference_attention
BODY = function_body.function_body_attention
PLAIN = [*KERNEL, *REFERENCE, *BODY]
THREE_AXES = [
    on_onnxruntime.attention_three_axes,
    on_reference.reference_attention_three_axes,
    function_body.function_body_attention_three_axes,
]
PAST = [
    *on_onnxruntime.attention_past,
    on_reference.reference_attention_past,
    function_body.function_body_attention_past,
]
EXTERNAL = [
    *on_onnxruntime.attention_external_cache,
    on_reference.reference_attention_external_cache,
    function_body.function_body_attention_external_cache,
]
WINDOW = [on_reference.reference_attention_window, function_body.function_body_attention_window]


def each(*candidates: Candidate) -> Any:
    return pytest.mark.parametrize("candidate", candidates, ids=lambda one: one.name)


@pytest.mark.one_in(2)
@each(*PLAIN, *THREE_AXES, *PAST, *EXTERNAL)
@pytest.mark.parametrize("use", [{}, {"scale": 0.3}, {"softcap": 0.7}, {"causal": True}], ids=str)
def test_every_form_computes_attention(candidate: Candidate, use: dict[str, Any]) -> None:
    """With groups of heads and values of their own size, with each option."""
    assert_agrees(candidate, heads(), **use)


@each(*PLAIN)
def test_half_precision_is_computed(candidate: Candidate) -> None:
    """float16 heads are answered in float16, within its bound."""
    assert_agrees(candidate, heads(dtype=torch.float16), keep=keep_some(3, 5))


@pytest.mark.one_in(2)
@each(*PLAIN, *THREE_AXES, *PAST)
@pytest.mark.parametrize(
    "shape", [(2, 4, 3, 5), (2, 1, 3, 5), (1, 4, 3, 5), (1, 1, 3, 5), (4, 3, 5), (1, 3, 5), (3, 5)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_masks_broadcast(candidate: Candidate, shape: tuple[int, ...], *, causal: bool) -> None:
    """A boolean mask hides keys and another is added, in every shape that ends in both lengths."""
    flags: dict[str, Any] = {"causal": True} if causal else {}
    keep = keep_some(*shape)
    assert_agrees(candidate, heads(), keep=keep, **flags)
    bias = normal(*shape, seed=5).masked_fill(~keep, float("-inf"))
    assert_agrees(candidate, heads(), bias=bias, **flags)


@each(*PLAIN)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_added(candidate: Candidate, dtype: torch.dtype) -> None:
    """A mask of 0 and 1 in integers is no mask: it raises the logits of the keys marked 1."""
    ones = keep_some(3, 5).to(dtype)

    def function(*tensors: Tensor, **_: Any) -> Any:
        return candidate(*tensors, bias=ones)

    given = dataclasses.replace(candidate, function=function)
    assert_agrees(given, heads(), bias=ones.double())


@each(*BODY)
@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (1, 1, 1, 5), (1, 5), (5,)])
def test_the_function_takes_masks_of_one_row(candidate: Candidate, shape: tuple[int, ...]) -> None:
    """Where the kernel and the evaluator fail, the definition itself is right."""
    assert_agrees(candidate, heads(), keep=keep_some(*shape), causal=True)


@each(*PLAIN)
def test_a_row_without_keys_is_zero(candidate: Candidate) -> None:
    """The specification's word for a query whose keys are all hidden."""
    keep = keep_some(2, 1, 3, 5)
    keep[0, 0, 1] = False
    assert not bool(candidate(*heads(), keep=keep)[0, :, 1].any())


@each(*PAST)
def test_past_keys_come_before_the_queries(candidate: Candidate) -> None:
    """Causality is aligned with the last key: the last query sees all, the first all but two."""
    query, key, _ = heads((3, 5))
    value = torch.eye(5).expand(2, 2, 5, 5).contiguous()
    seen = candidate(query, key, value, causal=True) != 0
    assert bool((seen == torch.ones(3, 5, dtype=torch.bool).tril(2)).all())


@each(*EXTERNAL)
@pytest.mark.parametrize("lengths", [[5, 5], [5, 2], [1, 4], [0, 3]])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_hide_the_end(candidate: Candidate, lengths: list[int], *, causal: bool) -> None:
    """Keys at or past an item's length are ignored, beside causality too; no keys give zeros."""
    flags: dict[str, Any] = {"causal": True} if causal else {}
    assert_agrees(candidate, heads(), lengths=torch.tensor(lengths), **flags)


@each(*WINDOW)
@pytest.mark.parametrize("window", [(1, 0), (0, 1), (-1, 1), (2, -1)])
def test_windows_are_obeyed(candidate: Candidate, window: tuple[int, int]) -> None:
    """Opset 25's two sides, of which -1 is without a limit."""
    assert_agrees(candidate, heads(), window=window)


@each(*PLAIN, *THREE_AXES, *PAST)
def test_weights_are_returned(candidate: Candidate) -> None:
    """Mode 3 of the fourth output: one table a head, whose rows sum to 1 over the kept keys."""
    keep = keep_some(2, 1, 3, 5)
    _, weights = candidate(*heads(), keep=keep, return_weights=True)
    assert weights.shape == (2, 4, 3, 5)
    assert not bool(weights[~keep.expand(2, 4, 3, 5)].any())
    assert float((weights.sum(-1) - 1).abs().max()) <= 5 * torch.finfo(torch.float32).eps
