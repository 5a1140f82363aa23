"""Layers whose projections are written as something else than three linear maps and a fourth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import conformance
from conformance import Geometry, ProjectionWeights

from ._kit import CORE, NAN_SPREADS, admitted, heads_of, joined, soften
from .projections import NO_EMPTY_SEQUENCE

Forward = Callable[..., Tensor]
LAYER: dict[str, Any] = {**CORE, "features": []}


def layer(**promises: Any) -> Callable[[Callable[..., Any]], Any]:
    """``conformance.layer`` with the promises of this file, where no others are given."""
    return conformance.layer(**{**LAYER, **promises})


def _attend(heads: Iterable[Tensor], keep: Tensor | None, *, causal: bool) -> Tensor:
    """Heads ``[B, H, L, D]`` of query, key and value, attended in the plain way."""
    query, key, value = heads
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


def _apart(tokens: Tensor, heads: int) -> Tensor:
    """Tokens ``[B, L, H*D]`` cut into heads ``[B, H, L, D]``."""
    cut: Tensor = tokens.unflatten(-1, (heads, -1)).transpose(1, 2)
    return cut


def _with_heads(weights: ProjectionWeights, project: Callable[[Tensor, str], Tensor]) -> Forward:
    """A layer from a function that makes heads ``[B, H, L, D]`` of tokens and a role."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        made = [project(x, role) for role, x in zip("qkv", (query, key, value), strict=True)]
        return joined(_attend(made, keep, causal=causal), weights)

    return forward


@layer(expected_failures=[NAN_SPREADS, NO_EMPTY_SEQUENCE])
def projections_by_convolution(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """Convolutions along the tokens whose kernel has one tap."""

    def project(x: Tensor, role: str) -> Tensor:
        matrix, bias = getattr(weights, role), getattr(weights, f"{role}_bias")
        made = functional.conv1d(x.mT, matrix[..., None], bias)
        return _apart(made.mT, geometry.num_heads)

    return _with_heads(weights, project)


@layer()
def projections_head_by_head(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """A matrix for each head, and a loop over them."""

    def project(x: Tensor, role: str) -> Tensor:
        matrices = getattr(weights, role).chunk(geometry.num_heads)
        bias = getattr(weights, f"{role}_bias")
        biases = [None] * geometry.num_heads if bias is None else bias.chunk(geometry.num_heads)
        made = [functional.linear(x, m, b) for m, b in zip(matrices, biases, strict=True)]
        return torch.stack(made, dim=1)

    return _with_heads(weights, project)


@layer()
def projections_by_one_sum(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """``einsum`` over matrices ``[H, D, E]``, heads falling out where they are wanted."""

    def project(x: Tensor, role: str) -> Tensor:
        matrix = getattr(weights, role).unflatten(0, (geometry.num_heads, -1))
        bias = getattr(weights, f"{role}_bias")
        made: Tensor = torch.einsum("ble,hde->bhld", x, matrix)
        return made if bias is None else made + bias.unflatten(0, (geometry.num_heads, 1, -1))

    return _with_heads(weights, project)


@layer()
def matrices_stored_the_other_way(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """``addmm`` with ``(in, out)`` matrices, as the first transformers stored them."""
    stored = {role: getattr(weights, role).T.contiguous() for role in "qkv"}

    def project(x: Tensor, role: str) -> Tensor:
        bias = getattr(weights, f"{role}_bias")
        rows = x.flatten(0, 1)
        made = rows @ stored[role] if bias is None else torch.addmm(bias, rows, stored[role])
        return _apart(made.unflatten(0, x.shape[:2]), geometry.num_heads)

    return _with_heads(weights, project)


@layer(inputs="self")
def packed_head_by_head(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """One matrix in which query, key and value of a head are neighbours: BLOOM's ``[H, 3, D]``."""
    count = geometry.num_heads
    if geometry.head_size != geometry.value_head_size:
        sizes = [geometry.head_size, geometry.head_size, geometry.value_head_size]
    else:
        sizes = [geometry.head_size] * 3
    blocks = [getattr(weights, role).unflatten(0, (count, -1)) for role in "qkv"]
    matrix = torch.cat(blocks, dim=1).flatten(0, 1)
    added = [
        torch.zeros(matrix_of.shape[0]).to(matrix) if bias is None else bias
        for matrix_of, bias in (
            (getattr(weights, role), getattr(weights, f"{role}_bias")) for role in "qkv"
        )
    ]
    bias = torch.cat([one.unflatten(0, (count, -1)) for one in added], dim=1).flatten()

    def forward(x: Tensor, *, keep: Tensor | None = None, causal: bool = False) -> Tensor:
        made = functional.linear(x, matrix, bias).unflatten(-1, (count, -1)).transpose(1, 2)
        return joined(_attend(made.split(sizes, dim=-1), keep, causal=causal), weights)

    return forward


@layer()
def scale_in_the_query_matrix(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """The root of the head size divides matrix and bias of the queries, not the scores."""
    root = geometry.head_size**-0.5

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        bias = None if weights.q_bias is None else weights.q_bias * root
        scaled = functional.linear(query, weights.q * root, bias).unflatten(
            -1, (geometry.num_heads, -1)
        )
        keys = heads_of(key, weights, "k", geometry.num_heads)
        values = heads_of(value, weights, "v", geometry.num_heads)
        table = admitted(scaled.transpose(1, 2), keys, keep, causal=causal)
        return joined(soften(scaled.transpose(1, 2) @ keys.mT, table) @ values, weights)

    return forward


@layer()
def output_summed_over_heads(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """No heads are joined: each meets its columns of the output matrix, and the sum is taken."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        heads = [
            heads_of(x, weights, role, geometry.num_heads)
            for role, x in zip("qkv", (query, key, value), strict=True)
        ]
        mixed = _attend(heads, keep, causal=causal)
        if weights.o is None:
            return mixed.transpose(1, 2).flatten(2)
        columns = weights.o.unflatten(1, (geometry.num_heads, -1))
        summed = torch.einsum("bhqd,ohd->bqo", mixed, columns)
        return summed if weights.o_bias is None else summed + weights.o_bias

    return forward


@layer()
def values_projected_behind_the_weights(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """The weights mix tokens; the value matrix of each head meets the mixture."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        queries = heads_of(query, weights, "q", geometry.num_heads)
        keys = heads_of(key, weights, "k", geometry.num_heads)
        table = admitted(queries, keys, keep, causal=causal)
        shares = soften(queries @ keys.mT * geometry.head_size**-0.5, table)
        matrices = weights.v.unflatten(0, (geometry.num_heads, -1))
        mixed = torch.einsum("bhqe,hde->bhqd", shares @ value[:, None], matrices)
        if weights.v_bias is not None:
            some = table.any(-1, keepdim=True).to(mixed.dtype)
            mixed = mixed + weights.v_bias.unflatten(0, (geometry.num_heads, 1, -1)) * some
        return joined(mixed, weights)

    return forward


class _LowRank(nn.Module):
    """A matrix with a low-rank update that has learned nothing yet."""

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrix.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.down = nn.Parameter(torch.ones(2, matrix.shape[1], dtype=matrix.dtype))
        self.up = nn.Parameter(torch.zeros(matrix.shape[0], 2, dtype=matrix.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """The projection and its update."""
        update = functional.linear(functional.linear(x, self.down), self.up)
        return functional.linear(x, self.weight, self.bias) + update


class _AdaptedLayer(nn.Module):
    """Each projection has an adapter beside it (LoRA), as it is before training."""

    def __init__(self, geometry: Geometry, weights: ProjectionWeights) -> None:
        super().__init__()
        self.heads = geometry.num_heads
        for role in "qkv":
            made = _LowRank(getattr(weights, role), getattr(weights, f"{role}_bias"))
            self.add_module(role, made)
        output = weights.o
        self.o = None if output is None else _LowRank(output, weights.o_bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attend with every projection adapted."""
        made = [
            self.get_submodule(role)(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for role, x in zip("qkv", (query, key, value), strict=True)
        ]
        merged = _attend(made, keep, causal=causal).transpose(1, 2).flatten(2)
        return merged if self.o is None else self.o(merged)


adapters_that_learned_nothing = layer(name="adapters_that_learned_nothing")(_AdaptedLayer)


@layer()
def parameters_from_outside(geometry: Geometry, weights: ProjectionWeights) -> Forward:
    """A module without weights of its own, called by ``functional_call`` with those of a dict."""
    shapes = {role: getattr(weights, role).shape for role in "qkv"}
    template = nn.ModuleDict(
        {role: nn.Linear(shape[1], shape[0], device="meta") for role, shape in shapes.items()}
    )

    def project(x: Tensor, role: str) -> Tensor:
        matrix, bias = getattr(weights, role), getattr(weights, f"{role}_bias")
        given = {"weight": matrix, "bias": matrix.new_zeros(len(matrix)) if bias is None else bias}
        made: Tensor = functional_call(template[role], given, (x,))
        return _apart(made, geometry.num_heads)

    return _with_heads(weights, project)
