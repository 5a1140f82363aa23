"""Several dtypes in one call: promoted, taken in the query's dtype, refused, or under autocast."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor, soften

EVERY = ["float32", "float64", "float16", "bfloat16"]


def _same(*tensors: Tensor) -> torch.dtype:
    """The one dtype of some tensors; raises TypeError where there are several."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        msg = f"query, key and value are of {len(dtypes)} dtypes: {sorted(map(str, dtypes))}"
        raise TypeError(msg)
    return dtypes.pop()


def _widened(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In float32 at least, wherever that is wider."""
    working = torch.promote_types(query.dtype, torch.float32)
    return query.to(working), key.to(working), value.to(working)


@core(dtypes=EVERY, scores="fused", mixed="promote", masks=["keep", "bias"])
def several_dtypes_promoted(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """All inputs in the widest dtype of theirs, float32 at least; the mask with its own values."""
    check(query, key, value)
    widest = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    q, k, v = _widened(query.to(widest), key, value)
    logits = q @ k.mT * factor(query, scale)
    table = admitted(query, key, keep, causal=causal)
    if bias is not None:
        check_mask(bias, key)
        logits, table = logits + bias, table & (bias != -torch.inf)
    return (soften(logits, table).to(v.dtype) @ v).to(widest)


def check_mask(bias: Tensor, key: Tensor) -> None:
    """Refuse a mask for another number of keys; raises ValueError."""
    if bias.shape[-1] not in (1, key.shape[-2]):
        msg = f"the bias is for {bias.shape[-1]} keys, but there are {key.shape[-2]}"
        raise ValueError(msg)


@core(dtypes=EVERY, mixed="query")
def cache_in_the_dtype_of_the_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Keys and values are converted to the dtype of the query, and so is everything else."""
    check(query, key, value)
    key, value = key.to(query.dtype), value.to(query.dtype)
    scores = (query * factor(query, scale)) @ key.mT
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core(dtypes=EVERY, mixed="query", scores="fused")
def cache_of_any_dtype_used_as_it_is(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The answer is in the dtype of the query; in between everything is in float64."""
    check(query, key, value)
    scores = query.double() @ key.double().mT * factor(query, scale)
    weights = soften(scores, admitted(query, key, keep, causal=causal))
    return (weights @ value.double()).to(query.dtype)


@core(dtypes=EVERY, mixed="refuse")
def one_dtype_only(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Inputs of several dtypes are refused before anything is computed."""
    _same(query, key, value)
    check(query, key, value)
    scores = (query * factor(query, scale)) @ key.mT
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core(dtypes=EVERY, features=["scale", "autocast"])
def eager_under_autocast(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Two products and a softmax: autocast makes the products of half precision."""
    _same(query, key, value)
    check(query, key, value)
    scores = (query * factor(query, scale)) @ key.mT
    table = admitted(query, key, keep, causal=causal)
    return torch.matmul(soften(scores, table), value)


@core(dtypes=["float32"], features=["scale", "autocast"])
def autocast_switched_off(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Under autocast it computes in float32 all the same, and answers in it."""
    _same(query, key, value)
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    with torch.autocast("cpu", enabled=False):
        scores = query @ key.mT * factor(query, scale)
        return soften(scores, table) @ value
