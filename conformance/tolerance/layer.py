"""The worst-case bound of the whole layer: projections, attention, output projection."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from conformance._golden import golden

from .contract import Contract
from .core import one_sided_bound
from .projection import projection_bound
from .quantised import activation_error, matrix_error, projection_error, quantise


def layer_bound(
    layer: golden.MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    contract: Contract,
) -> Tensor:
    """How far each element of a conforming answer may be from ``layer.output``.

    ``query [B, Lq, Eq]``, ``key [B, Lk, Ek]``, ``value [B, Lk, Ev]`` and ``weights`` are what the
    layer was evaluated on. Returns float64 ``[B, Lq, Eo]``, finite and not negative.

    Derived in docs/tolerance.md.
    """
    if layer.output.numel() == 0:
        return torch.zeros_like(layer.output)
    core = layer.core
    errors = head_errors(
        core, (query, key, value), weights, semantics, contract, projected=layer.projected
    )
    bound = one_sided_bound(core, contract, *errors)
    merged = golden.merge_heads(bound, semantics)
    return _output_error(layer, merged, weights, semantics, contract).mul_(contract.sides)


def head_errors(
    core: golden.Attention,
    tokens: tuple[Tensor, Tensor, Tensor],
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    contract: Contract,
    *,
    projected: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What projected query, key and value heads already carry; None means that they are exact.

    ``projected`` are the exact projections where they are known, before heads are cut.
    """
    query, key, value = tokens
    exact_query, exact_key, exact_value = projected or (None, None, None)
    query_bias = weights.q_bias if semantics.query_bias else None
    key_bias = weights.k_bias if semantics.key_bias else None
    value_bias = weights.v_bias if semantics.value_bias else None
    return (
        _head_error(query, weights.q, query_bias, core.query, semantics, contract, exact_query),
        _head_error(key, weights.k, key_bias, core.key, semantics, contract, exact_key),
        _head_error(value, weights.v, value_bias, core.value, semantics, contract, exact_value),
    )


def _head_error(
    tokens: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    heads: Tensor,
    semantics: golden.Semantics,
    contract: Contract,
    exact: Tensor | None,
) -> Tensor | None:
    """The error of projected tokens as that of heads, repeated like ``heads [B, H, L, D]``."""
    bias = None if bias is None else bias.double()
    tokens, matrix = tokens.double(), matrix.double()
    error = projection_bound(tokens, matrix, bias, contract, result=exact)
    steps = contract.at("quantisation").activation_steps
    if steps:
        error = _with_integers(error, tokens, matrix, bias, contract, steps)
    if error is None:
        return None
    split = golden.split_heads(error, matrix.shape[0] // heads.shape[-1], semantics)
    return golden.repeat_heads(split, heads.shape[1], semantics)


def _with_integers(
    error: Tensor | None,
    tokens: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    contract: Contract,
    steps: int,
) -> Tensor:
    """The same where the projection may be one of integers: it rounds what they stand for."""
    moved = projection_error(tokens, matrix, steps)
    of_integers = projection_bound(quantise(tokens, steps).tokens, matrix, bias, contract)
    for rounded in (error, of_integers):
        if rounded is not None:
            moved = moved + rounded
    return moved


def _output_error(
    layer: golden.MultiHeadAttention,
    incoming: Tensor,
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    contract: Contract,
) -> Tensor:
    if weights.o is None:
        return incoming
    matrix = weights.o[:, : layer.merged.shape[-1]].double()
    bias = weights.o_bias if semantics.output_bias else None
    bias = None if bias is None else bias.double()
    merged, output = layer.merged, layer.output
    if semantics.empty_rows == "nan":
        merged, output = merged.nan_to_num(nan=0.0), output.nan_to_num(nan=0.0)
    steps = contract.at("quantisation").activation_steps
    lost = None
    if steps:
        incoming = activation_error(merged, incoming, _reach(layer.core), steps)
        lost = matrix_error(matrix)
    error = projection_bound(
        merged, matrix, bias, contract, incoming=incoming, result=output, stored="rounding"
    )
    if lost is not None and error is not None:
        error += linear(merged.abs() + incoming, lost)
    if error is None:  # for the type checker: with an incoming error there is always one
        return incoming
    return error


def _reach(core: golden.Attention) -> float:
    """How large rows without a key may be, whatever their rule: they are among the values."""
    if not bool(core.empty.any()):
        return 0.0
    return float(core.value.abs().nan_to_num(nan=0.0).amax())
