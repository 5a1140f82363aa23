"""Sliding-window attention with a band mask, as local layers of long-context models."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


@conformance.core(
    masks=["keep"], causal="bottom-right", empty_rows="zeros", features=["window", "scale"]
)
def window(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, H, Lk, D]``; ``window`` keys before and after, -1: all."""
    lq, lk = query.shape[-2], key.shape[-2]
    if value.shape[-2] != lk:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    before, after = (-1, -1) if window is None else window
    if causal:
        after = 0 if after < 0 else min(after, 0)
    position = torch.arange(lq, device=query.device).unsqueeze(1) + (lk - lq)
    distance = position - torch.arange(lk, device=query.device).unsqueeze(0)
    band = torch.ones(lq, lk, dtype=torch.bool, device=query.device)
    if before >= 0:
        band = band & (distance <= before)
    if after >= 0:
        band = band & (distance >= -after)
    if keep is not None:
        band = band & keep
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    logits = torch.where(band, (query * factor) @ key.mT, -torch.inf)
    peak = logits.max(dim=-1, keepdim=True).values
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    powers = torch.exp(logits - peak)
    total = powers.sum(dim=-1, keepdim=True)
    return (powers @ value) / torch.where(total == 0, 1.0, total)
