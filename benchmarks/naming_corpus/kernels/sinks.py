"""Attention with a learned sink per head: one more logit, whose weight is thrown away."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


@conformance.core(
    masks=["keep_int"], causal="bottom-right", empty_rows="zeros", features=["sinks", "gqa"]
)
def sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep_int: Tensor | None = None,
    causal: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, Hkv, Lk, D]``; ``sinks`` is ``[H]``."""
    batch, heads, lq, size = query.shape
    lk = key.shape[2]
    if value.shape[2] != lk:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    key = torch.repeat_interleave(key, heads // key.shape[1], dim=1)
    value = torch.repeat_interleave(value, heads // value.shape[1], dim=1)
    logits = torch.einsum("bhqd,bhkd->bhqk", query, key) * (size**-0.5)
    seen = torch.ones(batch, heads, lq, lk, dtype=torch.bool, device=query.device)
    if keep_int is not None:
        seen = seen & (keep_int != 0)
    if causal:
        seen = seen & seen.new_ones(lq, lk).tril(diagonal=lk - lq)
    logits = logits.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.view(1, heads, 1, 1).expand(batch, heads, lq, 1)
        logits = torch.cat([logits, column.to(logits.dtype)], dim=-1)
    weights = torch.softmax(logits, dim=-1)
    if sinks is not None:
        weights = weights[..., :-1]
    weights = weights.masked_fill(~seen, 0.0)
    return torch.einsum("bhqk,bhkd->bhqd", weights, value)
