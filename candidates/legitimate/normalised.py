"""Normalised queries and keys, by torch's functions and line by line."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

import conformance
from conformance import Geometry, ProjectionWeights, Semantics

from ._kit import NAN_SPREADS, admitted, core, factor, heads_of, joined, soften


@core(semantics=Semantics(qk_norm="rms"), features=["scale", "gqa"])
def by_root_mean_square(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """LLaMA's RMSNorm: squares in float32, stored before anything else."""

    def norm(x: Tensor) -> Tensor:
        wide = x.float() if x.dtype != torch.float64 else x
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    query, key = norm(query), norm(key)
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    table = admitted(query, key, keep, causal=causal)
    return soften(query @ key.mT * factor(query, scale), table) @ value


@core(
    semantics=Semantics(qk_norm="l2", qk_norm_epsilon=1e-12, scale=10.0),
    features=["softcap"],
)
def by_cosines(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    softcap: float | None = None,
) -> Tensor:
    """Cosine attention with a fixed temperature."""
    query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
    logits = query @ key.mT * 10.0
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return soften(logits, admitted(query, key, keep, causal=causal)) @ value


@core(
    semantics=Semantics(
        qk_norm="layer", qk_norm_epsilon=1e-5, norm_order="after-rotary", rotary="halves"
    )
)
def by_layer_norm_of_turned_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Turned by tables in float32, then normalised by torch."""

    def prepared(heads: Tensor, first: int) -> Tensor:
        half = heads.shape[-1] // 2
        places = torch.arange(first, first + heads.shape[2])
        angles = places[:, None] * 10000.0 ** -(torch.arange(half) / max(half, 1))
        cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        one, two, rest = heads.split([half, half, heads.shape[-1] - 2 * half], dim=-1)
        parts = (one * cosine - two * sine, one * sine + two * cosine, rest)
        return functional.layer_norm(torch.cat(parts, dim=-1), heads.shape[-1:], eps=1e-5)

    query, key = prepared(query, key.shape[2] - query.shape[2]), prepared(key, 0)
    table = admitted(query, key, keep, causal=causal)
    return soften(query @ key.mT * factor(query, scale), table) @ value


@core(semantics=Semantics(qk_norm="layer", qk_norm_epsilon=1e-5), masks=["bias"])
def by_layer_norm(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """LayerNorm without parameters, as in ViT-22B."""
    size = query.shape[-1:]
    query = functional.layer_norm(query, size, eps=1e-5)
    key = functional.layer_norm(key, size, eps=1e-5)
    logits = query @ key.mT * factor(query, scale)
    table = admitted(query, key, None, causal=causal)
    if bias is not None:
        logits, table = logits + bias, table & ~torch.isneginf(bias)
    return soften(logits, table) @ value


@core(semantics=Semantics(qk_norm="layer", qk_norm_epsilon=1e-3))
def line_by_line(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Every step in the dtype of the heads."""

    def norm(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / ((centred * centred).mean(-1, keepdim=True) + 1e-3).sqrt()

    query, key = norm(query), norm(key)
    table = admitted(query, key, keep, causal=causal)
    return soften(query @ key.mT * factor(query, scale), table) @ value


@core(semantics=Semantics(qk_norm="rms", qk_norm_epsilon=0.01))
def factors_on_the_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """No head is normalised: the scores are multiplied by both factors."""
    wide = torch.promote_types(query.dtype, torch.float32)
    own = (query.to(wide).square().mean(-1, keepdim=True) + 0.01).rsqrt()
    others = (key.to(wide).square().mean(-1, keepdim=True) + 0.01).rsqrt()
    scores = (query @ key.mT).to(wide) * own * others.mT * factor(query, scale)
    table = admitted(query, key, keep, causal=causal)
    return soften(scores, table).to(query.dtype) @ value


@conformance.layer(
    masks=["keep"],
    empty_rows="zeros",
    causal="bottom-right",
    features=["gqa"],
    semantics=Semantics(qk_norm="l2", scale=4.0),
    expected_failures=[NAN_SPREADS],
)
def normalised_layer(geometry: Geometry, weights: ProjectionWeights) -> Callable[..., Tensor]:
    """Projections, unit vectors, attention."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        q = functional.normalize(
            heads_of(query, weights, "q", geometry.num_heads), dim=-1, eps=1e-6
        )
        k = functional.normalize(
            heads_of(key, weights, "k", geometry.num_kv_heads), dim=-1, eps=1e-6
        )
        group = geometry.num_heads // geometry.num_kv_heads
        k = k.repeat_interleave(group, 1)
        v = heads_of(value, weights, "v", geometry.num_kv_heads).repeat_interleave(group, 1)
        table = admitted(q, k, keep, causal=causal)
        mixed = soften(4.0 * (q @ k.mT), table) @ v
        return joined(mixed, weights)

    return forward
