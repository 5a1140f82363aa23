"""A decoder layer with rotary positions (halves) and grouped heads, as in LLaMA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import conformance

BASE = 10000.0


def rotate_half(x: Tensor) -> Tensor:
    """The second half, negated, before the first."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def rotary(x: Tensor) -> Tensor:
    """Turn the channels of ``[B, H, L, D]`` by the angles of their positions."""
    length, size = x.shape[-2], x.shape[-1]
    exponents = torch.arange(0, size, 2, device=x.device, dtype=torch.float64) / size
    frequencies = BASE**-exponents
    angles = torch.arange(length, device=x.device)[:, None] * frequencies[None, :]
    angles = torch.cat([angles, angles], dim=-1)
    return x * angles.cos().to(x.dtype) + rotate_half(x) * angles.sin().to(x.dtype)


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
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa"],
    geometry=even_width,
    semantics=conformance.Semantics(rotary="halves"),
)
class RotaryLayer:
    """Projections, rotary positions, grouped attention, output projection."""

    def __init__(
        self, geometry: conformance.Geometry, weights: conformance.ProjectionWeights
    ) -> None:
        self.n_heads = geometry.num_heads
        self.n_kv = geometry.num_kv_heads
        self.w = weights

    def __call__(self, x: Tensor, *, keep: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attend ``[B, L, E]`` to itself."""
        bsz, seq, _ = x.shape
        xq = functional.linear(x, self.w.q, self.w.q_bias).unflatten(-1, (self.n_heads, -1))
        xk = functional.linear(x, self.w.k, self.w.k_bias).unflatten(-1, (self.n_kv, -1))
        xv = functional.linear(x, self.w.v, self.w.v_bias).unflatten(-1, (self.n_kv, -1))
        xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        xq, xk = rotary(xq), rotary(xk)
        xk = xk.repeat_interleave(self.n_heads // self.n_kv, dim=1)
        xv = xv.repeat_interleave(self.n_heads // self.n_kv, dim=1)
        scores = xq @ xk.transpose(2, 3) / xq.shape[-1] ** 0.5
        allowed = torch.ones(bsz, 1, seq, seq, dtype=torch.bool, device=x.device)
        if keep is not None:
            allowed = allowed & keep
        if causal:
            allowed = allowed & torch.ones_like(allowed).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
        probs = scores.softmax(dim=-1).masked_fill(~allowed, 0.0)
        out = (probs @ xv).transpose(1, 2).flatten(2)
        return out if self.w.o is None else functional.linear(out, self.w.o, self.w.o_bias)
