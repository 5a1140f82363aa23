"""Biases by distance (ALiBi) as a table, as counted from either end, and in torch's kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

import conformance
from conformance import Geometry, ProjectionWeights, Semantics

from ._kit import NAN_SPREADS, admitted, core, factor, heads_of, joined, soften

ALIBI = Semantics(alibi=True)


def slopes(count: int) -> list[float]:
    """Press et al.'s recursion."""

    def of_power(n: int) -> list[float]:
        start = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [start ** (h + 1) for h in range(n)]

    if math.log2(count).is_integer():
        return of_power(count)
    closest = 2 ** math.floor(math.log2(count))
    return of_power(closest) + slopes(2 * closest)[0::2][: count - closest]


def per_head(query: Tensor) -> Tensor:
    """The slopes ``[H, 1, 1]`` in the query's dtype."""
    return torch.tensor(slopes(query.shape[1])).to(query.dtype)[:, None, None]


def by_distance(query: Tensor, key: Tensor) -> Tensor:
    """Minus slope times distance, ``[H, Lq, Lk]``."""
    own = torch.arange(key.shape[-2] - query.shape[-2], key.shape[-2])[:, None]
    return -per_head(query) * (own - torch.arange(key.shape[-2])).abs()


@core(semantics=ALIBI, features=["scale", "gqa", "window"])
def with_linear_biases(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> Tensor:
    """A table of all distances, also where groups share keys."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    logits = query @ key.mT * factor(query, scale) + by_distance(query, key)
    table = admitted(query, key, keep, causal=causal)
    if window is not None:
        left, right = window
        length = key.shape[2]
        own = torch.arange(length - query.shape[2], length)[:, None]
        ahead = torch.arange(length) - own
        near = (ahead >= -left) | (left < 0)
        table = table & near & ((ahead <= right) | (right < 0))
    return soften(logits, table) @ value


@core(semantics=ALIBI, always_causal=True, features=["scale"])
def counted_from_the_first_key(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Slope times key position: behind a causal mask the same, up to a constant of each row."""
    bias = per_head(query) * torch.arange(key.shape[2]).to(query.dtype)
    logits = query @ key.mT * factor(query, scale) + bias
    return soften(logits, admitted(query, key, keep, causal=True)) @ value


@core(semantics=ALIBI, always_causal=True, features=["scale"])
def counted_from_the_last_key(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The same from the other end, as in MPT; the bias joins in the product's own addition."""
    length = key.shape[2]
    bias = (per_head(query) * torch.arange(1 - length, 1)).expand(query.shape[1], 1, length)
    shape = (query.shape[0], query.shape[1], query.shape[2], length)
    flat = bias.expand(shape).flatten(0, 1)
    logits = torch.baddbmm(
        flat, query.flatten(0, 1), key.flatten(0, 1).mT, alpha=factor(query, scale)
    ).view(shape)
    return soften(logits, admitted(query, key, keep, causal=True)) @ value


@core(semantics=ALIBI, causal=None, masks=["keep"], features=["scale"])
def as_a_mask_of_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Distances in the float mask of torch's kernel."""
    bias = by_distance(query, key).unsqueeze(0)
    if keep is not None:
        bias = bias.masked_fill(~keep, -math.inf)
    answer = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.to(query.dtype), scale=scale
    )
    empty = torch.isneginf(bias).all(-1, keepdim=True)
    return answer.masked_fill(empty.expand(*answer.shape[:-1], 1), 0.0)


@conformance.layer(
    masks=["keep"],
    causal="top-left",
    empty_rows="zeros",
    inputs="memory",
    semantics=ALIBI,
    expected_failures=[NAN_SPREADS],
)
def layer_with_linear_biases(
    geometry: Geometry, weights: ProjectionWeights
) -> Callable[..., Tensor]:
    """Attention to a memory, with distances counted from the first tokens of both."""

    def forward(
        query: Tensor, context: Tensor, *, keep: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        given = zip("qkv", (query, context, context), strict=True)
        q, k, v = (heads_of(x, weights, role, geometry.num_heads) for role, x in given)
        apart = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        table = apart >= 0 if causal else torch.ones_like(apart, dtype=torch.bool)
        table = table if keep is None else table & keep
        logits = q @ k.mT / geometry.head_size**0.5 - per_head(q) * apart.abs()
        mixed = soften(logits, table) @ v
        return joined(mixed, weights)

    return forward
