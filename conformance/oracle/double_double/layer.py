"""The whole layer in double-double: projections, attention, output projection."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._golden import golden
from .arithmetic import DoubleDouble, add_number, exact
from .attention import settle, weighted_values
from .products import matmul


def layer_output(
    layer: golden.MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
) -> tuple[Tensor, Tensor]:
    """The exact output as ``high + low``, float64 ``[B, Lq, Eo]`` both.

    ``query [B, Lq, Eq]``, ``key [B, Lk, Ek]``, ``value [B, Lk, Ev]`` and ``weights`` are what
    ``layer`` was evaluated on, at ``semantics``, and are taken as exact. Where the golden output is
    not finite, and where double-double overflows, ``high`` is the golden output and ``low`` zero.

    Raises ValueError at a point that :func:`supports` does not know.
    """
    with torch.no_grad():
        heads = _heads(layer.core, (query, key, value), weights, semantics)
        output = weighted_values(layer.core, *heads)
        merged = DoubleDouble(*(golden.merge_heads(part, semantics) for part in output))
        return settle(_projected_output(merged, weights, semantics), layer.output)


def _heads(
    core: golden.Attention,
    tokens: tuple[Tensor, Tensor, Tensor],
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
) -> tuple[DoubleDouble, DoubleDouble, DoubleDouble]:
    """Projected query, key and value heads, repeated for every query head."""
    query, key, value = (exact(given) for given in tokens)
    projected = (
        _project(query, weights.q, weights.q_bias if semantics.query_bias else None),
        _project(key, weights.k, weights.k_bias if semantics.key_bias else None),
        _project(value, weights.v, weights.v_bias if semantics.value_bias else None),
    )
    return (
        _split(projected[0], core.query, semantics),
        _split(projected[1], core.key, semantics),
        _split(projected[2], core.value, semantics),
    )


def _project(tokens: DoubleDouble, matrix: Tensor, bias: Tensor | None) -> DoubleDouble:
    """``x W^T + b`` for ``x [B, L, in]`` and ``W [out, in]``."""
    batch, length, width = tokens.high.shape
    flat = DoubleDouble(tokens.high.reshape(-1, width), tokens.low.reshape(-1, width))
    product = matmul(flat, exact(matrix.double().T))
    high, low = (part.reshape(batch, length, matrix.shape[0]) for part in product)
    projected = DoubleDouble(high, low)
    return projected if bias is None else add_number(projected, bias.double())


def _split(tokens: DoubleDouble, heads: Tensor, semantics: golden.Semantics) -> DoubleDouble:
    """Cut ``[B, L, Hkv*D]`` into heads and repeat them, in the shape of ``heads [B, H, L, D]``."""
    num_heads, head_size = heads.shape[1], heads.shape[3]
    count = tokens.high.shape[-1] // head_size
    parts = (golden.split_heads(part, count, semantics) for part in tokens)
    return DoubleDouble(*(golden.repeat_heads(part, num_heads, semantics) for part in parts))


def _projected_output(
    merged: DoubleDouble, weights: golden.ProjectionWeights, semantics: golden.Semantics
) -> DoubleDouble:
    if weights.o is None:
        return merged
    # Heads concatenated along the tokens meet one block of the output matrix, not all of them.
    matrix = weights.o[:, : merged.high.shape[-1]]
    return _project(merged, matrix, weights.o_bias if semantics.output_bias else None)
