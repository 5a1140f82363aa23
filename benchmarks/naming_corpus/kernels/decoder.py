"""A decoder layer with a cache: normalised queries and keys, rotary pairs, as in Qwen3."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import conformance

EPSILON = 1e-6


def table(length: int, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all positions: ``[L, D/2]``."""
    frequencies = 10000.0 ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(length)[:, None] * frequencies
    return angles.cos(), angles.sin()


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn channels 2i and 2i + 1 of ``[B, H, L, D]`` together."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


def normalise(x: Tensor) -> Tensor:
    """Divide each head by the root of its mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def even_width(geometry: conformance.Geometry) -> conformance.Geometry:
    """Even head sizes, and all inputs of one width."""
    size = geometry.head_size + geometry.head_size % 2
    return geometry.replace(
        head_size=size,
        value_head_size=size,
        key_size=geometry.query_size,
        value_size=geometry.query_size,
        key_length=geometry.query_length,
    )


@conformance.layer(
    inputs="self",
    masks=["drop"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa", "kv_cache"],
    geometry=even_width,
    semantics=conformance.Semantics(rotary="interleaved", qk_norm="rms"),
)
class Decoder:
    """Projections, norms, rotary positions, the cache before the new keys, output projection."""

    def __init__(
        self, geometry: conformance.Geometry, weights: conformance.ProjectionWeights
    ) -> None:
        self.heads, self.kv_heads = geometry.num_heads, geometry.num_kv_heads
        self.size = geometry.head_size
        self.w = weights

    def __call__(
        self,
        x: Tensor,
        *,
        drop: Tensor | None = None,
        causal: bool = False,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Tensor:
        """Attend ``[B, L, E]`` to itself and to cached heads ``[B, Hkv, P, D]``."""
        w = self.w
        q = functional.linear(x, w.q, w.q_bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = functional.linear(x, w.k, w.k_bias).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = functional.linear(x, w.v, w.v_bias).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        past = 0
        if past_key is not None and past_value is not None:
            past = past_key.shape[2]
            k = torch.cat([past_key, k], dim=2)
            v = torch.cat([past_value, v], dim=2)
        length = k.shape[2]
        q, k = normalise(q), normalise(k)
        cosine, sine = table(length, self.size)
        q = turn(q, cosine[past:], sine[past:])
        k = turn(k, cosine, sine)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = q @ k.mT / self.size**0.5
        hidden = torch.zeros(scores.shape, dtype=torch.bool, device=x.device)
        if drop is not None:
            hidden = hidden | drop
        if causal:
            hidden = hidden | torch.ones_like(hidden).triu(past + 1)
        probs = scores.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)
        out = (probs @ v).transpose(1, 2).flatten(2)
        return out if w.o is None else functional.linear(out, w.o, w.o_bias)
