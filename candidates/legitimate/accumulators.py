"""Accumulators of every kind that keeps what is declared."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor, soften

EVERY = ["float16", "bfloat16", "float32", "float64"]
HALVES = ["float16", "bfloat16"]
# Keys that a block of a kernel reads at once.
BLOCK = 16


def _wide(*tensors: Tensor) -> list[Tensor]:
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


@core(dtypes=EVERY, scores="fused")
def one_key_after_the_other(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A sum in float32 that grows by one key at a time, the simplest loop there is."""
    check(query, key, value)
    q, k, v = _wide(query, key, value)
    weights = soften(q @ k.mT * factor(query, scale), admitted(query, key, keep, causal=causal))
    total = torch.zeros(*weights.shape[:-1], v.shape[-1], dtype=v.dtype)
    for column, row in zip(weights.unbind(-1), v.unbind(-2), strict=True):
        total += column.unsqueeze(-1) * row.unsqueeze(-2)
    return total.to(query.dtype)


@core(dtypes=EVERY, scores="fused")
def compensated_blocks_of_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Kahan's summation: what a sum has lost is added to the next term."""
    check(query, key, value)
    q, k, v = _wide(query, key, value)
    weights = soften(q @ k.mT * factor(query, scale), admitted(query, key, keep, causal=causal))
    total = torch.zeros(*weights.shape[:-1], v.shape[-1], dtype=v.dtype)
    lost = torch.zeros_like(total)
    for first in range(0, v.shape[-2], BLOCK):
        term = weights[..., first : first + BLOCK] @ v[..., first : first + BLOCK, :] - lost
        grown = total + term
        lost, total = (grown - total) - term, grown
    return total.to(query.dtype)


@core(dtypes=HALVES)
def scaled_before_a_stored_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Query and key are both divided by the root, so that a product in half does not overflow."""
    check(query, key, value)
    by = factor(query, scale)
    root = abs(by) ** 0.5
    scores = (query * root) @ (key * (root if by >= 0.0 else -root)).mT
    return soften(scores.float(), admitted(query, key, keep, causal=causal)).to(value.dtype) @ value


@core(dtypes=["float16"], accumulate="native", masks=[], causal=None, empty_rows="any")
def half_precision_throughout(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
) -> Tensor:
    """Each sum in float16, as is declared: products past 65504 need not be answered."""
    check(query, key, value)
    scores = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
    for channel in range(query.shape[-1]):
        scores = scores + query[..., channel, None] * key[..., None, :, channel]
    return torch.softmax(scores * factor(query, scale), dim=-1) @ value
