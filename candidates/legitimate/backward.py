"""Backward passes of one's own: recomputed, in blocks, in other orders, checkpointed, twice."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import conformance
from conformance import Geometry, ProjectionWeights

from ._kit import (
    NAN_SPREADS,
    OVERFLOWS,
    admitted,
    check,
    core,
    factor,
    heads_of,
    joined,
    soften,
)

EVERY_DTYPE = ["float32", "float64", "float16", "bfloat16"]
BLOCK = 16
ROLES: Final = tuple(field.name for field in dataclasses.fields(ProjectionWeights))


def _plain(query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: float) -> Tensor:
    return soften(query @ key.mT * scale, table) @ value


class _InBlocks(Function):
    """FlashAttention's: the log-sum-exp is kept, the weights are recomputed block by block."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: float
    ) -> Tensor:
        """In the accumulator of the dtype; rows without keys are zeros."""
        wide = torch.promote_types(query.dtype, torch.float32)
        logits = (query.to(wide) @ key.to(wide).mT * scale).masked_fill(~table, -torch.inf)
        total = logits.logsumexp(dim=-1, keepdim=True)
        total = total.masked_fill(total.isneginf(), torch.inf)
        output = (torch.exp(logits - total) @ value.to(wide)).to(query.dtype)
        ctx.save_for_backward(query, key, value, table, total, output)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Blocks of keys outside, blocks of queries inside; the key's gradient grows in place."""
        query, key, value, table, total, output = ctx.saved_tensors
        wide = total.dtype
        gradient = gradients[0].to(wide)
        q, k, v = (tensor.to(wide) for tensor in (query, key, value))
        row_term = (gradient * output.to(wide)).sum(dim=-1, keepdim=True)
        found = [torch.zeros_like(tensor) for tensor in (q, k, v)]
        table = table.expand(*query.shape[:3], key.shape[2])
        for start in range(0, key.shape[2], BLOCK):
            keys = slice(start, start + BLOCK)
            for first in range(0, query.shape[2], BLOCK):
                rows = slice(first, first + BLOCK)
                logits = q[:, :, rows] @ k[:, :, keys].mT * ctx.scale
                weights = torch.exp(logits - total[:, :, rows])
                weights = weights.masked_fill(~table[:, :, rows, keys], 0.0)
                given = gradient[:, :, rows]
                scores = weights * (given @ v[:, :, keys].mT - row_term[:, :, rows]) * ctx.scale
                found[0][:, :, rows] += scores @ k[:, :, keys]
                found[1][:, :, keys] += scores.mT @ q[:, :, rows]
                found[2][:, :, keys] += weights.mT @ given
        return (*(each.to(query.dtype) for each in found), None, None)


@core(dtypes=EVERY_DTYPE, scores="fused")
def backward_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Weights recomputed from the log-sum-exp, block by block (Dao et al. 2022)."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    scale = factor(query, scale)
    answer: Tensor = _InBlocks.apply(query, key, value, table, scale)  # type: ignore[no-untyped-call]  # torch's own
    return answer


class _SplitSums(Function):
    """Key gradients from strips of queries, added up from the last strip to the first."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: float
    ) -> Tensor:
        """The ordinary answer."""
        ctx.save_for_backward(query, key, value, table)
        ctx.scale = scale
        return _plain(query, key, value, table, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """As atomics would, in an order of their own; only what is needed."""
        query, key, value, table = ctx.saved_tensors
        (gradient,) = gradients
        weights = soften(query @ key.mT * ctx.scale, table)
        change = gradient @ value.mT
        scores = weights * (change - (weights * change).sum(dim=-1, keepdim=True)) * ctx.scale
        strips = range(query.shape[2])[::-1]
        for_key, for_value = torch.zeros_like(key), torch.zeros_like(value)
        for row in strips:
            one = slice(row, row + 1)
            for_key = for_key + scores[:, :, one].mT @ query[:, :, one]
            for_value = for_value + weights[:, :, one].mT @ gradient[:, :, one]
        needed = ctx.needs_input_grad
        found = (scores @ key if needed[0] else None, for_key if needed[1] else None)
        return (*found, for_value if needed[2] else None, None, None)


@core(dtypes=["float32", "float64"], features=["scale", "double_backward"])
def backward_row_by_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Gradients of the keys added up row by row, from the last; they can be differentiated."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    scale = factor(query, scale)
    answer: Tensor = _SplitSums.apply(query, key, value, table, scale)  # type: ignore[no-untyped-call]  # torch's own
    return answer


@core(dtypes=["float32", "float64"], features=["scale", "double_backward"])
def by_autograd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Torch's own gradients, and second ones."""
    check(query, key, value)
    return _plain(
        query, key, value, admitted(query, key, keep, causal=causal), factor(query, scale)
    )


@core(dtypes=EVERY_DTYPE, expected_failures=[NAN_SPREADS, OVERFLOWS])
def checkpointed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Nothing is kept: torch.utils.checkpoint computes it all once more."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    answer: Tensor = checkpoint(
        _plain, query, key, value, table, factor(query, scale), use_reentrant=False
    )
    return answer


@core(dtypes=EVERY_DTYPE, expected_failures=[NAN_SPREADS, OVERFLOWS])
def checkpointed_reentrantly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The older checkpoint, which answers to ``backward()`` alone."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    given = query, key, value, table, factor(query, scale)
    if not _is_recorded(query, key, value):
        return _plain(*given)
    answer: Tensor = checkpoint(_plain, *given, use_reentrant=True)
    return answer


def _is_recorded(*tensors: Tensor) -> bool:
    """Whether a backward pass may come: else the older checkpoint warns, and nobody uses it."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _CheckpointedLayer(nn.Module):
    """A layer as it is trained with little memory: all of it is computed once more."""

    def __init__(self, geometry: Geometry, weights: ProjectionWeights) -> None:
        super().__init__()
        self.heads = (geometry.num_heads, geometry.num_kv_heads)
        self.roles = nn.ParameterDict(
            {
                field.name: nn.Parameter(getattr(weights, field.name).detach().clone())
                for field in dataclasses.fields(weights)
                if getattr(weights, field.name) is not None
            }
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The layer behind a checkpoint; its parameters are no arguments of it."""
        table = admitted(query, key, keep, causal=causal)
        if not _is_recorded(query, key, value):
            return self._attend(query, key, value, table)
        answer: Tensor = checkpoint(self._attend, query, key, value, table, use_reentrant=True)
        return answer

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        count, kv_count = self.heads
        weights = ProjectionWeights(**{name: self.roles.get(name) for name in ROLES})
        heads = heads_of(query, weights, "q", count)
        keys, values = (
            heads_of(tokens, weights, role, kv_count).repeat_interleave(count // kv_count, dim=1)
            for role, tokens in (("k", key), ("v", value))
        )
        scale = heads.shape[-1] ** -0.5
        return joined(_plain(heads, keys, values, table, scale), weights)


layer_checkpointed_reentrantly = conformance.layer(
    name="layer_checkpointed_reentrantly",
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    features=["grad_weights", "gqa"],
    expected_failures=[NAN_SPREADS],
)(_CheckpointedLayer)
