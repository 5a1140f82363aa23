"""A decoder's attention: cached keys and values come first, lengths say how many count."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


@conformance.core(
    masks=["lengths"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["kv_cache", "gqa"],
)
def cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    causal: bool = False,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to the cached ``[B, Hkv, P, D]`` and the new ``[B, Hkv, Lk, D]``."""
    if key.shape[2] != value.shape[2]:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    if past_key is not None and past_value is not None:
        key = torch.cat([past_key, key], dim=2)
        value = torch.cat([past_value, value], dim=2)
    new, total = query.shape[2], key.shape[2]
    repeats = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(repeats, dim=1)
    value = value.repeat_interleave(repeats, dim=1)
    scores = query @ key.transpose(2, 3)
    scores = scores / query.shape[3] ** 0.5
    slots = torch.arange(total, device=query.device)
    visible = torch.ones(query.shape[0], 1, new, total, dtype=torch.bool, device=query.device)
    if lengths is not None:
        visible = visible & (slots < lengths.view(-1, 1, 1, 1))
    if causal:
        steps = torch.arange(total - new, total, device=query.device)
        visible = visible & (slots.view(1, 1, 1, -1) <= steps.view(1, 1, -1, 1))
    scores = torch.where(visible, scores, -torch.inf)
    weights = torch.where(visible, scores.softmax(dim=3), 0.0)
    return weights @ value
