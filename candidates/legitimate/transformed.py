"""Functions that torch transforms (``vmap``, ``compile``, ``jit.script``), and numpy.

Measured on torch 2.13 (CPU): ``compile`` is correct with its backends eager, aot_eager and inductor
(24 s of compiling for five shapes) and flex attention uncompiled (10 ms a call), which are too slow
to be listed here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance import Candidate

from ._kit import admitted, check, core, factor, soften


def _one_head(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
    """Attention of ``[L, D]``: the scale is in the query."""
    return soften(query @ key.mT, table) @ value


@core()
def mapped_over_heads_and_items(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``torch.func.vmap``, twice."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    if not query.numel():
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    mapped = torch.func.vmap(torch.func.vmap(_one_head))
    return mapped(query * factor(query, scale), key, value, table)


@core()
def mapped_over_queries(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``vmap`` over the rows of the queries, keys and values shared."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    if not query.numel():
        return query.new_zeros(*query.shape[:3], value.shape[-1])

    def one_row(row: Tensor, seen: Tensor) -> Tensor:
        scores = (key * row.unsqueeze(-2)).sum(-1) * factor(query, scale)
        return torch.einsum("bhk,bhkv->bhv", soften(scores, seen), value)

    return torch.func.vmap(one_row, in_dims=2, out_dims=2)(query, table)


def _plain(query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: float) -> Tensor:
    weights = torch.softmax((query @ key.mT * scale).masked_fill(~table, -torch.inf), dim=-1)
    return weights.masked_fill(~table, 0.0) @ value


def _calling(name: str, attend: Callable[..., Tensor], **promises: Any) -> Candidate:
    def call(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        check(query, key, value)
        table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
        inputs = (x.contiguous() for x in (query, key, value, table))
        return attend(*inputs, factor(query, scale))

    return core(name=name, **promises)(call)


def _scripted() -> Callable[..., Tensor]:
    with warnings.catch_warnings():  # torch.jit is on its way out, and says so
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_plain)


# Few sizes, since torch compiles anew for each, eight times at most.
SIZES = {
    "batch": 2,
    "num_heads": 3,
    "query_length": [4, 9],
    "key_length": [5, 17],
    "head_size": 16,
    "value_head_size": 6,
}
compiled = _calling("compiled", torch.compile(_plain, backend="eager"), geometry=SIZES)
scripted = _calling("scripted", _scripted())


@core(without=["gradients"])
def in_numpy(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Numpy's arrays, with its own order of summation."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).numpy()
    scores = np.matmul(query.numpy(), key.mT.numpy()) * np.float32(factor(query, scale))
    scores = np.where(table, scores, np.float32(-np.inf))
    largest = scores.max(axis=-1, keepdims=True, initial=np.float32(-np.inf))
    weights = np.exp(scores - np.where(np.isneginf(largest), np.float32(0), largest))
    total = weights.sum(axis=-1, keepdims=True)
    return torch.from_numpy(weights @ value.numpy() / np.where(total == 0, np.float32(1), total))
