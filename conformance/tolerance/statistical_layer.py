"""The statistical error of the whole layer: projections, attention, output projection."""

from __future__ import annotations

from torch import Tensor

from conformance._golden import golden

from .contract import Contract
from .rows import restrict
from .spread import Spread, Variances
from .statistical_core import core_spread
from .statistical_projection import (
    moves_exactly,
    projected_spread,
    rounded_variance,
    squared_terms,
)


def layer_spread(
    layer: golden.MultiHeadAttention,
    tokens: tuple[Tensor, Tensor, Tensor],
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    contract: Contract,
    rows: Tensor,
    deviations: float,
) -> tuple[Spread, float]:
    """The error of ``layer.output[:, rows]`` and the fraction of core elements that is saturated.

    ``tokens`` are the inputs query, key and value ``[B, L, E]``. The heads must be merged side by
    side, so that a row of the layer is a row of every head.
    """
    core = restrict(layer.core, rows)
    carried = head_variances(core, tokens, weights, semantics, contract, rows)
    spread, saturated = core_spread(
        core, contract, deviations, carried, mixed=weights.o is not None
    )
    merged = Spread(
        variance=golden.merge_heads(spread.variance, semantics),
        last=golden.merge_heads(spread.last, semantics),
        linear=golden.merge_heads(spread.linear, semantics),
        slope=golden.merge_heads(spread.slope, semantics),
    )
    return _output_spread(merged, layer, weights, semantics, contract, rows), saturated


def head_variances(
    core: golden.Attention,
    tokens: tuple[Tensor, Tensor, Tensor],
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    contract: Contract,
    rows: Tensor,
) -> Variances:
    """What projected heads carry; ``core`` holds the query rows ``rows`` only."""
    query, key, value = tokens
    query_bias = weights.q_bias if semantics.query_bias else None
    key_bias = weights.k_bias if semantics.key_bias else None
    value_bias = weights.v_bias if semantics.value_bias else None
    chosen = None if rows.numel() == query.shape[1] else rows
    return Variances(
        query=_head_variance(
            query, weights.q, query_bias, core.given_query, semantics, contract, chosen=chosen
        ),
        key=_head_variance(key, weights.k, key_bias, core.given_key, semantics, contract),
        value=_head_variance(value, weights.v, value_bias, core.value, semantics, contract),
    )


def _head_variance(
    tokens: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    heads: Tensor,
    semantics: golden.Semantics,
    contract: Contract,
    *,
    chosen: Tensor | None = None,
) -> Tensor | None:
    """The variance of projected tokens as that of heads, repeated like ``heads [B, H, L, D]``."""
    matrix = matrix.double()
    bias = None if bias is None else bias.double()
    if moves_exactly(matrix, bias, contract):
        return None
    mixes_rows = semantics.head_split == "reinterpret"
    if chosen is not None and not mixes_rows:
        tokens = tokens[:, chosen]

    def as_heads(projected: Tensor) -> Tensor:
        split = golden.split_heads(projected, matrix.shape[0] // heads.shape[-1], semantics)
        repeated = golden.repeat_heads(split, heads.shape[1], semantics)
        return repeated[:, :, chosen] if chosen is not None and mixes_rows else repeated

    terms = as_heads(squared_terms(tokens.double(), matrix, contract))
    if bias is not None and mixes_rows:
        bias = as_heads(bias.expand(tokens.shape[0], tokens.shape[1], -1))
    elif bias is not None:
        bias = as_heads(bias.expand(1, 1, -1))
    return rounded_variance(terms, heads, bias, matrix.shape[1], contract)


def _output_spread(
    merged: Spread,
    layer: golden.MultiHeadAttention,
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    contract: Contract,
    rows: Tensor,
) -> Spread:
    if weights.o is None:
        return merged
    bias = weights.o_bias if semantics.output_bias else None
    tokens, result = layer.merged, layer.output
    if rows.numel() < result.shape[1]:
        tokens, result = tokens[:, rows], result[:, rows]
    if semantics.empty_rows == "nan":
        tokens, result = tokens.nan_to_num(nan=0.0), result.nan_to_num(nan=0.0)
    return projected_spread(
        merged,
        tokens,
        result,
        weights.o.double(),
        None if bias is None else bias.double(),
        contract,
    )
