"""Cores that are given positions and learned arguments, or return log-sum-exps."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from conformance import Semantics

from ._kit import admitted, core, factor, soften

_NORMED_AND_TURNED = Semantics(qk_norm="rms", rotary="interleaved")


def _turned(heads: Tensor, positions: Tensor) -> Tensor:
    """Neighbouring channels as complex numbers, multiplied by those of their positions."""
    pairs = heads.shape[-1] // 2
    frequencies = 10000.0 ** -(torch.arange(pairs, dtype=torch.float64) / max(pairs, 1))
    angles = positions[:, None, :, None].double() * frequencies
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    first = heads[..., : 2 * pairs].float().contiguous()
    whole = torch.view_as_complex(first.unflatten(-1, (pairs, 2)))
    turned = torch.view_as_real(whole * turns).flatten(-2).to(heads.dtype)
    return torch.cat([turned, heads[..., 2 * pairs :]], dim=-1)


@core(
    semantics=_NORMED_AND_TURNED,
    features=["scale", "positions", "norm_weight"],
)
def normed_and_placed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_positions: Tensor,
    key_positions: Tensor,
    query_norm_weight: Tensor,
    key_norm_weight: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Learned weights on the norms of queries and keys, which the positions of a call turn."""
    size = query.shape[-1:]
    query = functional.rms_norm(query, size, query_norm_weight, eps=1e-6)
    key = functional.rms_norm(key, size, key_norm_weight, eps=1e-6)
    query, key = _turned(query, query_positions), _turned(key, key_positions)
    scores = query @ key.mT * factor(query, scale)
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core(features=["scale", "temperature", "alibi_slopes", "lse"])
def leaning_with_log_sum_exps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    temperature: Tensor,
    alibi_slopes: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """A temperature and a slope for each head; the log-sum-exp is that of their logits."""
    places = torch.arange(key.shape[-2]) - (key.shape[-2] - query.shape[-2])
    distances = (torch.arange(query.shape[-2])[:, None] - places).abs()
    tempered = query * temperature[:, None, None] * factor(query, scale)
    scores = tempered @ key.mT - alibi_slopes[..., None, None] * distances
    table = admitted(query, key, keep, causal=causal)
    output = soften(scores, table) @ value
    return (output, scores.masked_fill(~table, -math.inf).logsumexp(-1)) if return_lse else output


@core(semantics=Semantics(relative="clipped"), features=["scale", "relative_table"])
def leaning_by_counted_bounds(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    relative_table: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The bucket of a distance is the number of bounds that it passes; its entry is embedded."""
    most = len(relative_table) // 2
    places = torch.arange(key.shape[-2]) - (key.shape[-2] - query.shape[-2])
    ahead = places - torch.arange(query.shape[-2])[:, None]
    buckets = torch.bucketize(ahead, torch.arange(-most, most))
    biases = functional.embedding(buckets, relative_table).movedim(-1, 0)
    logits = query @ key.mT * factor(query, scale) + biases
    return soften(logits, admitted(query, key, keep, causal=causal)) @ value


@core(features=["scale", "bias_kv"], empty_rows="any")
def merged_with_a_memory(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias_k: Tensor,
    bias_v: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Two states, the call's keys and the memory, merged by the softmax of their log-sum-exps."""
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -math.inf)
    beside = query @ bias_k.unsqueeze(-1) * factor(query, scale)
    sums = torch.cat([logits.logsumexp(-1, keepdim=True), beside], dim=-1)
    own, memory = sums.softmax(-1).split(1, dim=-1)
    merged: Tensor = own * (soften(logits, table) @ value) + memory * bias_v.unsqueeze(-2)
    return merged
