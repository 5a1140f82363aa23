"""Flash attention in plain torch: tiles of queries and keys, a running maximum and sum."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance

ROWS = 16
COLUMNS = 16


@conformance.core(masks=["keep"], causal="bottom-right", empty_rows="zeros", features=["scale"])
def tiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, H, Lk, D]`` and ``[B, H, Lk, Dv]``."""
    batch, heads, num_queries, head_size = query.shape
    num_keys = key.shape[2]
    if num_keys != value.shape[2]:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    scale = head_size**-0.5 if scale is None else scale
    if keep is not None:
        keep = keep.expand(batch, heads, num_queries, num_keys)
    output = query.new_zeros(batch, heads, num_queries, value.shape[3])
    for top in range(0, num_queries, ROWS):
        q = query[:, :, top : top + ROWS] * scale
        height = q.shape[2]
        peak = q.new_full((batch, heads, height, 1), -torch.inf)
        total = q.new_zeros((batch, heads, height, 1))
        mixed = q.new_zeros((batch, heads, height, value.shape[3]))
        for left in range(0, num_keys, COLUMNS):
            k = key[:, :, left : left + COLUMNS]
            v = value[:, :, left : left + COLUMNS]
            s = q @ k.mT
            if keep is not None:
                block = keep[:, :, top : top + ROWS, left : left + COLUMNS]
                s = s.masked_fill(~block, -torch.inf)
            if causal:
                row = torch.arange(top, top + height, device=s.device) + num_keys - num_queries
                column = torch.arange(left, left + k.shape[2], device=s.device)
                s = s.masked_fill(column[None, :] > row[:, None], -torch.inf)
            new_peak = torch.maximum(peak, s.amax(dim=-1, keepdim=True))
            safe = torch.where(new_peak == -torch.inf, 0.0, new_peak)
            p = torch.exp(s - safe)
            decay = torch.exp(peak - safe)
            total = total * decay + p.sum(dim=-1, keepdim=True)
            mixed = mixed * decay + p @ v
            peak = new_peak
        output[:, :, top : top + ROWS] = mixed / torch.where(total == 0, 1.0, total)
    return output
