"""Latent attention: one key for all heads, whose first channels are the value (DeepSeek's MLA)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import conformance
from conformance import Semantics

PROMISES: dict[str, Any] = {
    "layout": "latent",
    "masks": ["keep", "bias", "lengths"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "lse"],
}
# Heads of 8 channels and 4 that are turned, before the latent was brought into the query.
SCALE = 1.0 / math.sqrt(12.0)


class LatentCore:
    """Attention to a latent whose steps can be replaced; ``value_size`` channels are the value."""

    scale = SCALE

    def __init__(self, value_size: int = 16) -> None:
        self.value_size = value_size

    def keys(self, latent: Tensor) -> Tensor:
        """The key of all heads, ``[B, 1, Lk, R + P]``."""
        return latent.unsqueeze(1)

    def values(self, latent: Tensor) -> Tensor:
        """The value of all heads: the first channels, ``[B, 1, Lk, R]``."""
        return latent[..., : self.value_size].unsqueeze(1)

    def scores(self, query: Tensor, key: Tensor, scale: float | None) -> Tensor:
        """The scaled products ``[B, H, Lq, Lk]``."""
        return query @ key.mT * (self.scale if scale is None else scale)

    def seen(self, query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
        """The keys that causality leaves to each query."""
        rows, columns = query.shape[-2], key.shape[-2]
        table = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
        return table.tril(columns - rows) if causal else table

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        """The weighted sum of values."""
        return weights @ value

    def __call__(
        self,
        query: Tensor,
        latent: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend ``query [B, H, Lq, R + P]`` to ``latent [B, Lk, R + P]``."""
        if latent.shape[0] != query.shape[0] or latent.shape[-1] != query.shape[-1]:
            msg = f"a latent {tuple(latent.shape)} for queries {tuple(query.shape)}"
            raise ValueError(msg)
        key, value = self.keys(latent), self.values(latent)
        scores = self.scores(query, key, scale)
        seen = self.seen(query, key, causal=causal)
        if lengths is not None:
            places = torch.arange(latent.shape[1], device=latent.device)
            seen = seen & (places < lengths[:, None, None, None])
        if bias is not None:
            scores, seen = scores + bias, seen & ~torch.isneginf(bias)
        seen = seen if keep is None else seen & keep
        scores = scores.masked_fill(~seen, -math.inf)
        weights = scores.softmax(dim=-1).masked_fill(~seen, 0.0)
        output = self.mix(weights, value)
        return (output, scores.logsumexp(-1)) if return_lse else output


latent_attention = conformance.core(
    name="latent_attention",
    **PROMISES,
    semantics=Semantics(scale=SCALE),
    geometry={"head_size": 20, "value_head_size": 16},
)(LatentCore())
