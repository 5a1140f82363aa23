"""Layers that project, split and merge in other ways than linear maps and a transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import conformance
from conformance import ExpectedFailure, Geometry, ProjectionWeights

from ._kit import NAN_SPREADS, admitted, soften

Forward = Callable[..., Tensor]
LAYER: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "expected_failures": [NAN_SPREADS],
}


def attend(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, *, causal: bool
) -> Tensor:
    """The core that these layers share, for heads of any leading axes."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


def add(tokens: Tensor, bias: Tensor | None) -> Tensor:
    """The tokens plus a bias, where there is one."""
    return tokens if bias is None else tokens + bias


@conformance.layer(**LAYER)
def projected_by_einsum(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Matrices as ``[heads, size, width]``, straight into heads and straight out of them."""
    heads = geometry.num_heads

    def into(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        projected = torch.einsum("ble,hde->bhld", x, matrix.unflatten(0, (heads, -1)))
        return add(projected, None if bias is None else bias.unflatten(0, (heads, 1, -1)))

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        mixed = attend(
            into(query, weights.q, weights.q_bias),
            into(key, weights.k, weights.k_bias),
            into(value, weights.v, weights.v_bias),
            keep,
            causal=causal,
        )
        if weights.o is None:
            return mixed.transpose(1, 2).flatten(2)
        out = weights.o.unflatten(1, (heads, -1))
        return add(torch.einsum("bhlv,ehv->ble", mixed, out), weights.o_bias)

    return forward


@conformance.layer(**LAYER)
def projected_head_by_head(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Each head has its own rows of the matrices; the heads' parts of the output add up."""
    heads = geometry.num_heads

    def rows(x: Tensor, name: str, head: int) -> Tensor:
        matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
        own = None if bias is None else bias.chunk(heads)[head]
        return functional.linear(x, matrix.chunk(heads)[head], own)

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        shape = (query.shape[0], heads, query.shape[1], key.shape[1])
        table = admitted(query, key, keep, causal=causal).expand(shape)
        mixed = [
            attend(
                rows(query, "q", h),
                rows(key, "k", h),
                rows(value, "v", h),
                table[:, h],
                causal=False,
            )
            for h in range(heads)
        ]
        if weights.o is None:
            return torch.cat(mixed, dim=-1)
        parts = zip(mixed, weights.o.chunk(heads, dim=1), strict=True)
        return add(torch.stack([m @ part.T for m, part in parts]).sum(dim=0), weights.o_bias)

    return forward


NO_EMPTY_SEQUENCE: Final = ExpectedFailure(
    clause="shape.empty-query",
    kind="raised",
    reason="torch's convolution refuses a sequence of no tokens",
)


@conformance.layer(**{**LAYER, "expected_failures": [NAN_SPREADS, NO_EMPTY_SEQUENCE]})
def projected_by_convolution(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Convolutions of width one over tokens as ``[B, E, L]``."""

    def project(x: Tensor, name: str) -> Tensor:
        matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
        return functional.conv1d(x, matrix.unsqueeze(-1), bias)

    def into(x: Tensor, name: str) -> Tensor:
        returned: Tensor = project(x.mT, name).unflatten(1, (geometry.num_heads, -1)).mT
        return returned

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        mixed = attend(into(query, "q"), into(key, "k"), into(value, "v"), keep, causal=causal)
        merged = mixed.mT.flatten(1, 2)
        return (merged if weights.o is None else project(merged, "o")).mT

    return forward


def _interleaved(matrix: Tensor, heads: int) -> Tensor:
    """Rows ordered by head, then channel, put in the order by channel, then head."""
    returned: Tensor = matrix.unflatten(0, (heads, -1)).transpose(0, 1).flatten(0, 1).contiguous()
    return returned


@conformance.layer(**LAYER)
def stored_interleaved(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Inside, head h owns every H-th channel: rows and columns are moved when they are loaded."""
    heads = geometry.num_heads
    matrices = {name: _interleaved(getattr(weights, name), heads) for name in "qkv"}
    biases = {
        name: None if bias is None else _interleaved(bias, heads)
        for name in "qkv"
        for bias in [getattr(weights, f"{name}_bias")]
    }
    out = None if weights.o is None else _interleaved(weights.o.T, heads).T

    def into(x: Tensor, name: str) -> Tensor:
        projected = functional.linear(x, matrices[name], biases[name])
        returned: Tensor = projected.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)
        return returned

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        mixed = attend(into(query, "q"), into(key, "k"), into(value, "v"), keep, causal=causal)
        if out is None:
            return mixed.transpose(1, 2).flatten(2)
        return functional.linear(mixed.permute(0, 2, 3, 1).flatten(2), out, weights.o_bias)

    return forward


@conformance.layer(**LAYER)
def key_bias_left_out(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """A key bias moves every logit of a row alike, so that Whisper's keys have none."""

    def into(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        projected = functional.linear(x, matrix, bias)
        returned: Tensor = projected.unflatten(-1, (geometry.num_heads, -1)).transpose(1, 2)
        return returned

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        mixed = attend(
            into(query, weights.q, weights.q_bias),
            into(key, weights.k, None),
            into(value, weights.v, weights.v_bias),
            keep,
            causal=causal,
        )
        merged = mixed.transpose(1, 2).flatten(2)
        return merged if weights.o is None else functional.linear(merged, weights.o, weights.o_bias)

    return forward


@conformance.layer(**LAYER)
def value_bias_added_last(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """The weights sum to one: a value bias passes through them, and is added to each head."""

    def into(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        projected = add(x @ matrix.T, bias)
        returned: Tensor = projected.unflatten(-1, (geometry.num_heads, -1)).transpose(1, 2)
        return returned

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        heads = into(query, weights.q, weights.q_bias), into(key, weights.k, weights.k_bias)
        mixed = attend(*heads, into(value, weights.v, None), keep, causal=causal)
        merged = mixed.transpose(1, 2).flatten(2)
        if weights.v_bias is not None:
            table = admitted(query, key, keep, causal=causal)
            seen = table.any(dim=-1, keepdim=True).expand(*mixed.shape[:3], 1)
            alive = seen.expand_as(mixed).transpose(1, 2).flatten(2)
            merged = merged + weights.v_bias * alive
        return merged if weights.o is None else add(merged @ weights.o.T, weights.o_bias)

    return forward
