"""Layers of each kind of input, with packed projections, groups, weights or dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import conformance
from conformance import Geometry, ProjectionWeights

from ._kit import NAN_SPREADS, admitted, soften
from .projections import LAYER, Forward, attend


def _split(x: Tensor, heads: int) -> Tensor:
    returned: Tensor = x.unflatten(-1, (heads, -1)).transpose(-2, -3)
    return returned


def _output(mixed: Tensor, weights: ProjectionWeights) -> Tensor:
    merged = mixed.transpose(-2, -3).flatten(-2)
    return merged if weights.o is None else functional.linear(merged, weights.o, weights.o_bias)


def _packed(weights: ProjectionWeights, names: str) -> tuple[Tensor, Tensor]:
    matrices = [getattr(weights, name) for name in names]
    biases = [getattr(weights, f"{name}_bias") for name in names]
    filled = [
        matrix.new_zeros(len(matrix)) if bias is None else bias
        for matrix, bias in zip(matrices, biases, strict=True)
    ]
    return torch.cat(matrices), torch.cat(filled)


@conformance.layer(**LAYER, inputs="self")
def one_product_for_all_three(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Self-attention with one packed projection: GPT-2's ``c_attn``."""
    matrix, bias = _packed(weights, "qkv")
    sizes = [len(weights.q), len(weights.k), len(weights.v)]

    def forward(x: Tensor, *, keep: Tensor | None = None, causal: bool = False) -> Tensor:
        parts = functional.linear(x, matrix, bias).split(sizes, dim=-1)
        query, key, value = (_split(part, geometry.num_heads) for part in parts)
        return _output(attend(query, key, value, keep, causal=causal), weights)

    return forward


@conformance.layer(**LAYER, inputs="memory")
def keys_and_values_in_one_product(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Attention to a memory: the projections of keys and values are packed."""
    matrix, bias = _packed(weights, "kv")
    sizes = [len(weights.k), len(weights.v)]

    def forward(
        query: Tensor, context: Tensor, *, keep: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        parts = functional.linear(context, matrix, bias).split(sizes, dim=-1)
        key, value = (_split(part, geometry.num_heads) for part in parts)
        projected = functional.linear(query, weights.q, weights.q_bias)
        query = _split(projected, geometry.num_heads)
        return _output(attend(query, key, value, keep, causal=causal), weights)

    return forward


def _heads(
    geometry: Geometry, weights: ProjectionWeights, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _split(functional.linear(query, weights.q, weights.q_bias), geometry.num_heads),
        _split(functional.linear(key, weights.k, weights.k_bias), geometry.num_kv_heads),
        _split(functional.linear(value, weights.v, weights.v_bias), geometry.num_kv_heads),
    )


@conformance.layer(**LAYER, features=["gqa"])
def groups_share_keys(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Grouped heads by expanding keys and values along a new axis."""
    group = geometry.num_heads // geometry.num_kv_heads

    def shared(x: Tensor) -> Tensor:
        return x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        query, key, value = _heads(geometry, weights, query, key, value)
        return _output(attend(query, shared(key), shared(value), keep, causal=causal), weights)

    return forward


@conformance.layer(
    masks=["keep"],
    mask_shapes=["HQK", "11K", "QK"],
    inputs="self",
    batched=False,
    empty_rows="zeros",
    expected_failures=[NAN_SPREADS],
)
def one_sequence(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Self-attention on ``[L, E]``, without a batch axis."""

    def forward(x: Tensor, *, keep: Tensor | None = None) -> Tensor:
        query, key, value = _heads(geometry, weights, x, x, x)
        return _output(attend(query, key, value, keep, causal=False), weights)

    return forward


@conformance.layer(**LAYER, features=["weights", "dropout"])
def layer_with_weights_and_dropout(
    geometry: Geometry, weights: ProjectionWeights
) -> Callable[..., Any]:
    """Returns the weights of every head; dropout meets them before the values."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
        return_weights: bool = False,
        dropout: float = 0.0,
    ) -> Any:
        query, key, value = _heads(geometry, weights, query, key, value)
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
        shares = soften(scores, admitted(query, key, keep, causal=causal))
        output = _output(functional.dropout(shares, dropout) @ value, weights)
        return (output, shares) if return_weights else output

    return forward


@conformance.layer(**LAYER)
def queries_in_chunks(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """The answers of four queries at a time, to bound the memory."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        query, key, value = _heads(geometry, weights, query, key, value)
        table = admitted(query, key, keep, causal=causal)
        table = table.expand(*query.shape[:3], key.shape[2])
        chunks = zip(query.split(4, dim=2), table.split(4, dim=2), strict=True)
        mixed = [attend(q, key, value, seen, causal=False) for q, seen in chunks]
        return _output(torch.cat(mixed, dim=2), weights)

    return forward


@conformance.layer(**{**LAYER, "dtypes": ["bfloat16"], "scores": "fused", "accumulate": "float32"})
def widened_layer(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Bfloat16 tokens and weights, everything in between in single precision."""

    def project(x: Tensor, name: str) -> Tensor:
        matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
        return functional.linear(x.float(), matrix.float(), None if bias is None else bias.float())

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        inputs = zip((query, key, value), "qkv", strict=True)
        q, k, v = (_split(project(x, name), geometry.num_heads) for x, name in inputs)
        merged = attend(q, k, v, keep, causal=causal).transpose(1, 2).flatten(2)
        return (merged if weights.o is None else project(merged, "o")).to(query.dtype)

    return forward
