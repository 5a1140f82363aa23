"""Attention one block of keys at a time, with a running maximum, as fused kernels do it.

Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018 (arXiv:1805.02867); Dao et
al., "FlashAttention", 2022 (arXiv:2205.14135).
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

import conformance

BLOCK: Final = 16


class Accumulator:
    """The weighted sum so far, relative to the largest logit so far.

    ``largest`` and ``total`` are ``[B, H, Lq, 1]``, ``mixed`` is ``[B, H, Lq, Dv]``.
    """

    def __init__(self, query: Tensor, value_head_size: int) -> None:
        rows = query.shape[:-1]
        self.largest = query.new_full((*rows, 1), -math.inf)
        self.total = query.new_zeros((*rows, 1))
        self.mixed = query.new_zeros((*rows, value_head_size))

    def add(self, logits: Tensor, value: Tensor) -> None:
        """Take in the logits ``[B, H, Lq, n]`` and values ``[B, H, n, Dv]`` of one block."""
        largest = torch.maximum(self.largest, logits.amax(dim=-1, keepdim=True))
        # While a row has met no key its maximum is -inf, and -inf - -inf is NaN: use 0 instead.
        anchor = largest.masked_fill(torch.isneginf(largest), 0.0)
        shrink = torch.exp(self.largest - anchor)
        weights = torch.exp(logits - anchor)
        self.total = self.total * shrink + weights.sum(dim=-1, keepdim=True)
        self.mixed = self.mixed * shrink + weights @ value
        self.largest = largest

    def output(self) -> Tensor:
        """The average; rows that met no key are zeros."""
        return self.mixed / self.total.masked_fill(self.total == 0, 1.0)


@conformance.core(
    masks=["keep", "bias", "lengths"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["scale"],
    dtypes=["float32", "float64"],
    expected_failures={
        "mask.no-leak-nonfinite": "a weight of zero does not stop a NaN in a value: 0 * NaN is NaN",
    },
)
def online_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend ``query [B, H, Lq, D]`` to ``key [B, H, Lk, D]``, ``value [B, H, Lk, Dv]``.

    Returns ``[B, H, Lq, Dv]``. Raises ValueError for shapes that do not belong together.
    """
    _check(query, key, value, keep, bias)
    query = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    restriction = _restriction(query, key, keep, bias, lengths, causal=causal)
    accumulator = Accumulator(query, value.shape[-1])
    for start in range(0, key.shape[2], BLOCK):
        block = slice(start, start + BLOCK)
        logits = query @ key[:, :, block].transpose(-1, -2)
        if bias is not None:
            logits = logits + bias[..., block]
        kept = restriction[..., block]
        accumulator.add(logits.masked_fill(~kept, -math.inf), value[:, :, block])
    return accumulator.output()


def _check(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, bias: Tensor | None
) -> None:
    if query.shape[-1] != key.shape[-1]:
        msg = f"query has head size {query.shape[-1]} but key has {key.shape[-1]}"
        raise ValueError(msg)
    if value.shape[2] != key.shape[2]:
        msg = f"key has {key.shape[2]} tokens but value has {value.shape[2]}"
        raise ValueError(msg)
    for name, mask in (("keep", keep), ("bias", bias)):
        if mask is not None and mask.shape[-1] != key.shape[2]:
            msg = f"{name} is for {mask.shape[-1]} keys but there are {key.shape[2]}"
            raise ValueError(msg)


def _restriction(
    query: Tensor,
    key: Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    *,
    causal: bool,
) -> Tensor:
    """Every restriction in one boolean table that broadcasts to ``[B, H, Lq, Lk]``."""
    query_length, key_length = query.shape[2], key.shape[2]
    keys = torch.arange(key_length, device=query.device)
    table = torch.ones(1, 1, 1, key_length, dtype=torch.bool, device=query.device)
    if keep is not None:
        table = table & keep
    if bias is not None:
        table = table & ~torch.isneginf(bias)
    if lengths is not None:
        table = table & (keys < lengths.reshape(-1, 1, 1, 1))
    if causal:
        queries = torch.arange(query_length, device=query.device)[:, None]
        table = table & (keys - queries <= key_length - query_length)
    return table
