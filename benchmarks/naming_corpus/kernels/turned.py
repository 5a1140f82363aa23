"""Attention over heads that are normalised and turned first, without projections."""

from __future__ import annotations

import torch
from torch import Tensor

import conformance


def normalised(x: Tensor) -> Tensor:
    """Each head over the root of its mean square."""
    return x / torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)


def turned(x: Tensor, first: int) -> Tensor:
    """Turn halves of the channels by the angles of places from a first one on."""
    length, size = x.shape[-2], x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(size, dtype=torch.float64) / size)
    angles = (torch.arange(length) + first).unsqueeze(1) * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b, rest = x[..., :size], x[..., size : 2 * size], x[..., 2 * size :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


@conformance.core(
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    semantics=conformance.Semantics(qk_norm="rms", rotary="halves"),
)
def turned_heads(
    query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attend ``[B, H, Lq, D]`` to ``[B, H, Lk, D]`` and ``[B, H, Lk, Dv]``."""
    lq, lk = query.shape[-2], key.shape[-2]
    if value.shape[-2] != lk:
        msg = "keys and values have different lengths"
        raise ValueError(msg)
    query = turned(normalised(query), lk - lq)
    key = turned(normalised(key), 0)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if keep is not None:
        allowed = allowed & keep
    if causal:
        allowed = allowed.tril(lk - lq)
    weights: Tensor = scores.masked_fill(~allowed, -torch.inf).softmax(-1).masked_fill(~allowed, 0)
    return weights @ value
