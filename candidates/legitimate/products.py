"""The two products of attention, written in every way that torch has for them."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import NAN_HIDDEN, NAN_RETURNED, NAN_SPREADS, admitted, check, core, factor, soften


@core()
def einsum(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Both products by their indices."""
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    return torch.einsum("bhqk,bhkv->bhqv", weights, value)


@core(expected_failures=[NAN_SPREADS, NAN_HIDDEN, NAN_RETURNED])
def baddbmm(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Heads folded into the batch, mask and scale inside one batched product."""
    check(query, key, value)
    batch, heads, length, _ = query.shape
    table = admitted(query, key, keep, causal=causal).expand(batch, heads, length, key.shape[2])
    bias = torch.zeros(table.shape, dtype=query.dtype).masked_fill(~table, -torch.inf)
    scores = torch.baddbmm(
        bias.flatten(0, 1),
        query.flatten(0, 1),
        key.flatten(0, 1).mT,
        alpha=factor(query, scale),
    )
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))
    returned: Tensor = torch.bmm(weights, value.flatten(0, 1)).unflatten(0, (batch, heads))
    return returned


@core()
def products_by_broadcasting(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """No matrix product at all: elementwise products and sums."""
    check(query, key, value)
    scores = (query.unsqueeze(-2) * key.unsqueeze(-3)).sum(dim=-1) * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    return (weights.unsqueeze(-1) * value.unsqueeze(-3)).sum(dim=-2)


@core()
def keys_by_queries(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The transposed table ``[.., Lk, Lq]``: the softmax runs down its columns."""
    table = admitted(query, key, keep, causal=causal).mT
    scores = (key @ query.mT).mul(factor(query, scale)).masked_fill(~table, -torch.inf)
    weights = scores.softmax(dim=-2).masked_fill(~table, 0.0)
    return (value.mT @ weights).mT


@core()
def tokens_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Inside, the layout ``[B, L, H, D]`` that flash kernels take."""
    table = admitted(query, key, keep, causal=causal)
    query, key, value = (x.transpose(1, 2).contiguous() for x in (query, key, value))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * factor(query, scale)
    return torch.einsum("bhqk,bkhv->bqhv", soften(scores, table), value).transpose(1, 2)
