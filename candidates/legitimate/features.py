"""Softcap, window, fewer key/value heads, returned weights and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import conformance

from ._kit import admitted, core, factor, soften


@core(features=["scale", "softcap"])
def capped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Gemma 2's cap, with the division by it folded into the scale."""
    whole = factor(query, scale)
    scores = query @ key.mT
    logits = scores * whole if softcap is None else softcap * (scores * (whole / softcap)).tanh()
    return soften(logits, admitted(query, key, keep, causal=causal)) @ value


@core(features=["window"], masks=[], causal="bottom-right", expected_failures=[])
def banded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """Every query slices the keys of its own window; nothing else is computed."""
    left, right = (-1, -1) if window is None else window
    query_length, key_length = query.shape[2], key.shape[2]
    if key_length != value.shape[2]:
        msg = f"{key_length} keys, {value.shape[2]} values"
        raise ValueError(msg)
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for row in range(query_length):
        own = row + key_length - query_length
        start = 0 if left < 0 else max(own - left, 0)
        ahead = 0 if causal else right
        end = key_length if ahead < 0 else min(own + ahead + 1, key_length)
        if causal and right >= 0:
            end = min(end, own + 1)
        if start < end:
            logits = query[:, :, row, None] @ key[:, :, start:end].mT / query.shape[-1] ** 0.5
            output[:, :, row] = (logits.softmax(-1) @ value[:, :, start:end]).squeeze(2)
    return output


@core(features=["scale", "gqa"])
def grouped_by_reshaping(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The query heads of a group are an axis of their own: no key is repeated."""
    table = admitted(query, key, keep, causal=causal)
    table = table.expand(*query.shape[:3], key.shape[2]).unflatten(1, (key.shape[1], -1))
    grouped = query.unflatten(1, (key.shape[1], -1))
    scores = torch.einsum("bgrqd,bgkd->bgrqk", grouped, key) * factor(query, scale)
    return torch.einsum("bgrqk,bgkv->bgrqv", soften(scores, table), value).flatten(1, 2)


@core(features=["gqa"], geometry={"num_kv_heads": 1})
def one_head_of_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Multi-query attention: the queries of all heads meet one head of keys in one product."""
    heads, length = query.shape[1:3]
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    scores = query.flatten(1, 2) @ key.squeeze(1).mT / query.shape[-1] ** 0.5
    weights = soften(scores, table.flatten(1, 2))
    returned: Tensor = (weights @ value.squeeze(1)).unflatten(1, (heads, length))
    return returned


@core(features=["weights", "dropout"])
def with_weights_and_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    return_weights: bool = False,
    dropout: float = 0.0,
) -> Any:
    """Torch's own dropout on the weights; those that are returned are whole."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    output = functional.dropout(weights, dropout, training=True) @ value
    return (output, weights) if return_weights else output


@core(features=["dropout"])
def dropout_by_hand(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Bernoulli numbers on the exponentials; the sum that divides them is that of all."""
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~table, -torch.inf)
    weights = (logits - logits.amax(-1, keepdim=True).nan_to_num(neginf=0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    if dropout:
        weights = weights * torch.rand(weights.shape).ge(dropout) / (1 - dropout)
    returned: Tensor = weights @ value / torch.where(total == 0, 1.0, total)
    return returned


@conformance.core(
    masks=["keep"],
    mask_shapes=["HQK", "1QK", "QK"],
    batched=False,
    empty_rows="zeros",
    expected_failures={"mask.no-leak-nonfinite": "0 * NaN is NaN"},
)
def one_item(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """No batch axis: ``[H, L, D]``."""
    scores = torch.bmm(query, key.transpose(1, 2)).div(query.shape[-1] ** 0.5)
    return torch.bmm(soften(scores, admitted(query, key, keep, causal=False)), value)
