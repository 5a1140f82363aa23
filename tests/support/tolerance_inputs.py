"""Float32 inputs of attention by family, each hard on another step of the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import Contract, contract_for


@dataclass(frozen=True, kw_only=True)
class CoreInputs:
    """What a core is called with: float32 heads, an additive mask or None, scale and softcap."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None = None

    def golden(self) -> golden.Attention:
        """The exact answer."""
        return golden.attend(
            self.query,
            self.key,
            self.value,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
        )


def contract(dtype: str = "float32", scale: float = 0.5, **promises: Any) -> Contract:
    """What a core may err by that makes some promises."""
    return contract_for(declare("core", **promises), dtype, scale)


def waves(*shape: int, pace: float) -> Tensor:
    """Numbers in [-1, 1] that need no random generator, rounded to float32."""
    steps = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return torch.sin(pace * steps).reshape(shape).float()


Heads = tuple[Tensor, Tensor, Tensor]


def _first(tokens: Tensor) -> Tensor:
    return tokens[..., :1, :].expand_as(tokens).clone()


def _alternating(tokens: Tensor) -> Tensor:
    signs = torch.ones(tokens.shape[-2], 1, dtype=tokens.dtype)
    signs[1::2] = -1.0
    return tokens.abs() * signs


def _outlier(tokens: Tensor) -> Tensor:
    scaled = tokens.clone()
    scaled[..., 0] *= 100.0
    return scaled


def _repeated_but_first(tokens: Tensor) -> Tensor:
    """All keys but the first are one: their weight is one inexact number, added many times."""
    repeated = tokens[..., -1:, :].expand_as(tokens).clone()
    repeated[..., 0, :] = 0.0
    return repeated


def _wide(tokens: Tensor) -> Tensor:
    sizes = torch.exp(2.0 * tokens[..., :1]).clamp(max=30.0)
    return tokens * sizes


FAMILIES: dict[str, Callable[[Tensor, Tensor, Tensor], Heads]] = {
    "normal": lambda q, k, v: (q, k, v),
    "logits to 30": lambda q, k, v: (6.0 * q, 2.0 * k, v),
    "logits to 1e3": lambda q, k, v: (20.0 * q, 20.0 * k, v),
    "logits to 1e8": lambda q, k, v: (1e4 * q, 1e4 * k, v),
    "one key wins": lambda q, k, v: (200.0 * q, 200.0 * k, v),
    "ties": lambda q, k, v: (q, _first(k), v),
    "constant": lambda q, k, v: (0 * q + 0.7, 0 * k + 0.3, 0 * v + 0.41),
    "positive": lambda q, k, v: (q.abs(), k.abs(), v.abs()),
    "offset keys": lambda q, k, v: (q, k + 20.0, v),
    "offset values": lambda q, k, v: (q, k, v + 300.0),
    "cancelling values": lambda q, k, v: (0.05 * q, k, 1e4 * _alternating(v)),
    "tiny values": lambda q, k, v: (q, k, 1e-36 * v),
    "subnormal values": lambda q, k, v: (q, k, 1e-41 * v),
    "wide scales": lambda q, k, v: (_wide(q), _wide(k), _wide(v)),
    "outlier channel": lambda q, k, v: (_outlier(q), k, _outlier(v)),
    "one repeated weight": lambda q, k, v: (_first(q), _repeated_but_first(k), v),
}
# (B, H, Lq, Lk, D): single elements, odd sizes, either side of tiles, long rows.
SIZES = (
    (1, 1, 1, 1, 1),
    (2, 1, 3, 2, 1),
    (1, 3, 5, 7, 3),
    (2, 2, 9, 17, 16),
    (1, 2, 33, 31, 8),
    (1, 1, 4, 129, 64),
    (1, 1, 2, 257, 128),
)
MASKS = ("none", "causal", "random", "bias")


def make(family: str, size: tuple[int, int, int, int, int], mask: str, seed: int = 0) -> CoreInputs:
    """One problem of a family, rounded to float32."""
    batch, heads, queries, keys, width = size
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lengths = (queries, keys, keys)
    drawn = [normal(batch, heads, length, width) for length in lengths]
    query, key, value = FAMILIES[family](*drawn)
    return CoreInputs(
        query=query.float(),
        key=key.float(),
        value=value.float(),
        bias=additive_mask(mask, (batch, heads, queries, keys), generator),
        scale=width**-0.5,
    )


def additive_mask(
    mask: str, shape: tuple[int, int, int, int], generator: Generator
) -> Tensor | None:
    """Minus infinity where a key is ignored; every row keeps its first key."""
    if mask == "none":
        return None
    if mask == "bias":
        return torch.randn(shape, generator=generator) * 3.0
    if mask == "causal":
        keep = torch.ones(shape, dtype=torch.bool).tril(shape[3] - shape[2])
    else:
        keep = torch.rand(shape, generator=generator) < 0.5
    keep[..., 0] = True
    return torch.zeros(shape).masked_fill(~keep, -torch.inf)
