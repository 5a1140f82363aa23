"""Attention with capped logits, a padding mask that says what to drop, and a bias."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import conformance


@conformance.core(
    masks=["drop", "bias"],
    causal="top-left",
    empty_rows="zeros",
    features=["softcap", "scale"],
)
def softcap(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    drop: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    softcap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, H, Lk, D]`` and ``[B, H, Lk, Dv]``."""
    if key.shape[2] != value.shape[2]:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    scale = scale if scale is not None else query.shape[3] ** -0.5
    attn = query @ key.permute(0, 1, 3, 2)
    attn = attn * scale
    if softcap is not None:
        attn = attn / softcap
        attn = torch.tanh(attn)
        attn = attn * softcap
    if bias is not None:
        attn = attn + bias
    if drop is not None:
        attn = attn.masked_fill(drop, float("-inf"))
    if causal:
        future = torch.ones(attn.shape[2], attn.shape[3], device=attn.device).triu(1).bool()
        attn = attn.masked_fill(future, float("-inf"))
    empty = (attn == float("-inf")).all(dim=-1, keepdim=True)
    attn = attn.masked_fill(empty, 0.0)
    probs = functional.softmax(attn, dim=-1).masked_fill(empty, 0.0)
    return probs @ value
