"""Grouped-query attention without repeating keys: the heads of a group share a product."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


@conformance.core(masks=["drop"], causal="bottom-right", empty_rows="zeros", features=["gqa"])
def grouped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    drop: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]`` and ``[B, Hkv, Lk, Dv]``."""
    batch, num_heads, num_queries, head_size = query.shape
    kv_heads, num_keys = key.shape[1], key.shape[2]
    if value.shape[2] != num_keys:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    group = num_heads // kv_heads
    query = query.reshape(batch, kv_heads, group, num_queries, head_size)
    logits: Tensor = query @ key[:, :, None].transpose(-1, -2) / head_size**0.5
    logits = logits.reshape(batch, num_heads, num_queries, num_keys)
    hidden = torch.zeros(logits.shape, dtype=torch.bool, device=query.device)
    if drop is not None:
        hidden = hidden | drop
    if causal:
        ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
        hidden = hidden | ones.triu(num_keys - num_queries + 1)
    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)
    weights = weights.reshape(batch, kv_heads, group, num_queries, num_keys)
    output = weights @ value.unsqueeze(2)
    return output.reshape(batch, num_heads, num_queries, value.shape[-1])
