"""A cross-attention layer with fewer key/value heads, and lengths of the keys."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

import conformance


class Forward(Protocol):
    """What a layer's builder returns."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, lengths: Tensor | None = None
    ) -> Tensor:
        """Attend ``[B, Lq, Eq]`` to ``[B, Lk, Ek]`` and ``[B, Lk, Ev]``."""


@conformance.layer(masks=["lengths"], features=["gqa"], empty_rows="zeros")
def cross_layer(geometry: conformance.Geometry, weights: conformance.ProjectionWeights) -> Forward:
    """Build the layer for some weights."""
    num_heads, kv_heads = geometry.num_heads, geometry.num_kv_heads

    def split(tokens: Tensor, heads: int) -> Tensor:
        cut: Tensor = tokens.unflatten(-1, (heads, -1)).transpose(1, 2)
        return cut

    def forward(
        query: Tensor, key: Tensor, value: Tensor, *, lengths: Tensor | None = None
    ) -> Tensor:
        q = split(functional.linear(query, weights.q, weights.q_bias), num_heads)
        k = split(functional.linear(key, weights.k, weights.k_bias), kv_heads)
        v = split(functional.linear(value, weights.v, weights.v_bias), kv_heads)
        k = k.repeat_interleave(num_heads // kv_heads, dim=1)
        v = v.repeat_interleave(num_heads // kv_heads, dim=1)
        scores: Tensor = (q @ k.mT) / geometry.head_size**0.5
        if lengths is not None:
            padding = torch.arange(k.shape[2], device=k.device) >= lengths[:, None, None, None]
            scores = scores.masked_fill(padding, -torch.inf)
            probabilities = scores.softmax(-1).masked_fill(padding, 0.0)
        else:
            probabilities = scores.softmax(-1)
        heads = probabilities @ v
        merged = heads.transpose(1, 2).flatten(2)
        if weights.o is None:
            return merged
        return functional.linear(merged, weights.o, weights.o_bias)

    return forward
