"""Answers that are written into a buffer of the caller, which may have strides."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor, soften

BUFFER = {"features": ["scale", "out"], "without": ["gradients"]}


def _fitting(query: Tensor, value: Tensor, out: Tensor | None) -> Tensor:
    """The buffer, or a new one; raises ValueError for one of another shape or dtype."""
    shape = (*query.shape[:-1], value.shape[-1])
    if out is None:
        return query.new_empty(shape)
    if out.shape != shape or out.dtype != query.dtype:
        msg = f"out is {list(out.shape)} of {out.dtype} where {list(shape)} of {query.dtype} goes"
        raise ValueError(msg)
    return out


@core(name="buffer_of_the_product", **BUFFER)
def buffer_of_the_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The last product is told where to write."""
    check(query, key, value)
    weights = soften(
        query @ key.mT * factor(query, scale), admitted(query, key, keep, causal=causal)
    )
    return torch.matmul(weights, value, out=_fitting(query, value, out))


@core(name="buffer_copied_into", **BUFFER)
def buffer_copied_into(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor | None:
    """A copy at the end; with a buffer nothing is returned."""
    check(query, key, value)
    logits = query @ key.mT * factor(query, scale)
    answer = soften(logits, admitted(query, key, keep, causal=causal)) @ value
    if out is None:
        return answer
    _fitting(query, value, out).copy_(answer)
    return None


@core(name="buffer_added_to", layout="BSHD", **BUFFER)
def buffer_added_to(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The buffer is cleared, then each key adds its share; ``[B, S, H, D]``."""
    heads, keys, values = (tensor.transpose(1, 2) for tensor in (query, key, value))
    check(heads, keys, values)
    output = _fitting(query, value, out).zero_()
    logits = heads @ keys.mT * factor(query, scale)
    weights = soften(logits, admitted(heads, keys, keep, causal=causal)).transpose(1, 2)
    for index in range(key.shape[1]):
        output.add_(weights[..., index : index + 1] * value[:, index : index + 1])
    return output
