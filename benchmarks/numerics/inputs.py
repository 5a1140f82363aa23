"""What an implementation is called with: heads for a core, tokens and weights for a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from conformance._golden import golden


@dataclass(frozen=True, kw_only=True, eq=False)
class Heads:
    """The arguments of attention proper, in the working dtype.

    ``query [B, H, Lq, D]``, ``key [B, Hkv, Lk, D]``, ``value [B, Hkv, Lk, Dv]``; ``keep`` (bool,
    True attends) and ``bias`` broadcast to ``[B, H, Lq, Lk]``, every row keeps a key. ``causal``
    says that ``keep`` is the plain triangle of a square table.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    bias: Tensor | None
    scale: float
    softcap: float | None
    causal: bool

    @property
    def dtype(self) -> torch.dtype:
        """The working dtype."""
        return self.query.dtype

    def repeated(self) -> Heads:
        """With a key and a value head for every query head."""
        group = self.query.shape[1] // self.key.shape[1]
        key = self.key.repeat_interleave(group, dim=1)
        return replace(self, key=key, value=self.value.repeat_interleave(group, dim=1))

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """Mask and bias as one tensor ``[b, h, Lq, Lk]`` to add to the logits, or None."""
        if self.keep is None:
            return None if self.bias is None else self.bias.to(dtype)
        start = torch.zeros(self.keep.shape, dtype=dtype) if self.bias is None else self.bias
        return start.to(dtype).masked_fill(~self.keep, -torch.inf)

    def golden(self) -> golden.Attention:
        """The exact answer with everything on its way, float64."""
        return golden.attend(
            self.query,
            self.key,
            self.value,
            keep=self.keep,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """The arguments of a layer: ``query [B, Lq, E]``, ``key`` and ``value [B, Lk, E]``, weights.

    The rest is as in :class:`Heads`; ``alike`` says that query, key and value are the same tokens.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    weights: golden.ProjectionWeights
    num_heads: int
    num_kv_heads: int
    keep: Tensor | None
    bias: Tensor | None
    scale: float
    softcap: float | None
    causal: bool
    alike: bool

    @property
    def dtype(self) -> torch.dtype:
        """The working dtype."""
        return self.query.dtype

    def golden(self) -> golden.MultiHeadAttention:
        """The exact answer with everything on its way, float64."""
        return golden.multi_head_attention(
            self.query,
            self.key,
            self.value,
            self.weights,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            keep=self.keep,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
        )

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> Heads:
        """What the layer's core is called with, from projected tokens ``[B, L, heads * D]``."""
        return Heads(
            query=golden.split_heads(query, self.num_heads).contiguous(),
            key=golden.split_heads(key, self.num_kv_heads).contiguous(),
            value=golden.split_heads(value, self.num_kv_heads).contiguous(),
            keep=self.keep,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
            causal=self.causal,
        )

    def projected(self) -> Heads:
        """What the core is called with when the projections are torch's."""
        weights = self.weights
        return self.heads(
            linear(self.query, weights.q, weights.q_bias),
            linear(self.key, weights.k, weights.k_bias),
            linear(self.value, weights.v, weights.v_bias),
        )


Inputs = Heads | Tokens
