"""Attention over chunks of queries, so that the scores never exist all at once."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance

CHUNK = 8


@conformance.core(masks=["keep", "bias"], causal="top-left", empty_rows="zeros")
def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, H, Lk, D]`` and ``[B, H, Lk, Dv]``."""
    length, keys = query.shape[2], key.shape[2]
    if value.shape[2] != keys:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    batch, heads = query.shape[:2]
    output = query.new_zeros(batch, heads, length, value.shape[3])
    if bias is not None:
        bias = bias.expand(batch, heads, length, keys)
    if keep is not None:
        keep = keep.expand(batch, heads, length, keys)
    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        rows = torch.arange(start, stop, device=query.device)
        part = query[:, :, start:stop] @ key.mT * query.shape[-1] ** -0.5
        hidden = torch.zeros(part.shape, dtype=torch.bool, device=query.device)
        if bias is not None:
            piece = bias[:, :, start:stop]
            part = part + piece
            hidden = hidden | piece.isneginf()
        if keep is not None:
            hidden = hidden | ~keep[:, :, start:stop]
        if causal:
            hidden = hidden | (torch.arange(keys, device=query.device) > rows.unsqueeze(-1))
        part = part.masked_fill(hidden, -torch.inf)
        weights = part.softmax(dim=-1).masked_fill(hidden, 0.0)
        output[:, :, start:stop] = weights @ value
    return output
