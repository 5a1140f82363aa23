"""Attention as in the paper, with a boolean mask, an additive mask and a causal flag."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import conformance


@conformance.core(
    masks=["keep", "bias"], causal="bottom-right", empty_rows="zeros", features=["scale"]
)
def naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, H, Lk, D]`` and ``[B, H, Lk, Dv]``."""
    if key.shape[2] != value.shape[2]:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1))
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if keep is not None:
        allowed = allowed & keep
    if bias is not None:
        scores = scores + bias
        allowed = allowed & (bias != -math.inf)
    if causal:
        rows = torch.arange(query.size(2), device=query.device)
        columns = torch.arange(key.size(2), device=query.device)
        allowed = allowed & (columns[None, :] <= rows[:, None] + key.size(2) - query.size(2))
    scores = scores.masked_fill(~allowed, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    weights = weights.masked_fill(~allowed, 0.0)
    return torch.matmul(weights, value)
