"""The statistical bound: a limit for independent errors.

Half of the verdict on independent random inputs; structured inputs are judged by the worst case
only. Derived in docs/tolerance.md, after Higham and Mary, "A new approach to probabilistic rounding
error analysis", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import linear

from conformance._golden import golden

from . import model
from .attention_bound import is_normalised
from .contract import Contract
from .layer import is_exact
from .prepared import scale_error
from .spread import Carried, ErrorSpread, deviations_for, scale_rounding
from .statistical_core import core_spread


def sampled_rows(length: int) -> Tensor:
    """Choose the judged rows of ``length`` query rows: int64, ascending, all if they are few.

    Of many rows: the first, the last, rows around the edges of blocks (15, 16, 17, 31 ...), and
    rows drawn from a generator seeded by the length alone.
    """
    if length <= model.SAMPLED_ROWS:
        return torch.arange(length)
    chosen = _edges(length)
    drawn = torch.randperm(length, generator=Generator().manual_seed(length)).tolist()
    others = [row for row in drawn if row not in chosen]
    rows = [*sorted(chosen), *others][: model.SAMPLED_ROWS]
    return torch.tensor(sorted(rows))


def _edges(length: int) -> set[int]:
    """Return the rows on both sides of blocks of 16, 32, 64 ... rows, and both ends."""
    edges = {0, length - 1}
    block = model.SMALLEST_ROW_BLOCK
    while block < length:
        edges.update(row for row in (block - 1, block, block + 1) if row < length)
        block *= 2
    return edges


def restrict(attention: golden.Attention, rows: Tensor) -> golden.Attention:
    """An evaluation of the query rows ``rows`` (int64 ``[R]``) only."""
    if rows.numel() == attention.query.shape[-2]:
        return attention
    bias, alibi = attention.bias, attention.alibi
    return replace(
        attention,
        query=attention.query[:, :, rows],
        given_query=attention.given_query[:, :, rows],
        positions=attention.positions[rows],
        query_places=attention.query_places[..., rows],
        bias=bias if bias is None or bias.shape[-2] == 1 else bias[:, :, rows],
        alibi=None if alibi is None else alibi[:, :, rows],
        allowed=attention.allowed[:, :, rows],
        empty=attention.empty[:, :, rows],
        scores=attention.scores[:, :, rows],
        capped=attention.capped[:, :, rows],
        modified=attention.modified[:, :, rows],
        logits=attention.logits[:, :, rows],
        weights=attention.weights[:, :, rows],
        output=attention.output[:, :, rows],
    )


def moves_exactly(matrix: Tensor, bias: Tensor | None, contract: Contract) -> bool:
    """Tell whether a projection is exact: it only moves and doubles numbers."""
    return contract.operand_roundoff == 0.0 and is_exact(matrix, bias)


def squared_terms(
    tokens: Tensor, matrix: Tensor, contract: Contract, carried: Tensor | None = None
) -> Tensor:
    """The errors of products of ``tokens [B, L, in]`` and ``matrix (out, in)``: ``[B, L, out]``.

    Partial sums walk at random, products round once, operands may be rounded; ``carried`` is the
    variance of the tokens' own errors. Underflow joins the magnitudes. All float64.
    """
    walk = model.WALK * matrix.shape[1] + model.PRODUCTS
    factor = walk * contract.accumulator_roundoff**2 + 2.0 * contract.operand_roundoff**2
    lost = (contract.accumulator_underflow / contract.accumulator_roundoff) ** 2
    squares = tokens.square().add_(lost).mul_(factor)
    if carried is not None:
        squares += carried
    return linear(squares, matrix.square().add_(lost))


def rounded_variance(
    terms: Tensor, result: Tensor, bias: Tensor | None, inputs: int, contract: Contract
) -> Tensor:
    """The variance of a stored projection, its last rounding included.

    ``terms`` are the squared errors of the products, ``result`` is ``y`` (both of one shape, as
    tokens or as heads) and ``bias`` broadcasts to it.
    """
    drift = model.DRIFT * inputs * contract.accumulator_roundoff**2
    last = last_rounding(result, bias, inputs, contract)
    return terms.addcmul(result, result, value=drift).addcmul_(last, last)


def last_rounding(result: Tensor, bias: Tensor | None, inputs: int, contract: Contract) -> Tensor:
    """Return the error of storing product and sum with the bias, losses by underflow included."""
    size = result.abs()
    if bias is not None:
        size += (result - bias).abs_()
    underflow = 2.0 * contract.underflow + inputs * contract.accumulator_underflow
    return size.mul_(contract.unit_roundoff).add_(underflow)


def projected_spread(
    incoming: ErrorSpread,
    tokens: Tensor,
    result: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    contract: Contract,
) -> ErrorSpread:
    """The error of ``result = tokens W^T + b [B, L, out]`` for tokens that carry ``incoming``.

    Random errors add in quadrature and certain ones in full; the slope is mapped with its sign.
    """
    magnitudes = matrix.abs()
    certain = linear(incoming.linear, magnitudes)
    slope = linear(incoming.slope, matrix)
    if moves_exactly(matrix, bias, contract):
        variance, last = linear(incoming.variance, matrix.square()), incoming.last
        return ErrorSpread(
            variance=variance, last=linear(last, magnitudes), linear=certain, slope=slope
        )
    carried = torch.addcmul(incoming.variance, incoming.last, incoming.last)
    inputs = matrix.shape[1]
    variance = squared_terms(tokens, matrix, contract, carried)
    drift = model.DRIFT * inputs * contract.accumulator_roundoff**2
    return ErrorSpread(
        variance=variance.addcmul_(result, result, value=drift),
        last=last_rounding(result, bias, inputs, contract),
        linear=certain,
        slope=slope,
    )


def layer_spread(
    layer: golden.MultiHeadAttention, contract: Contract, rows: Tensor, deviations: float
) -> tuple[ErrorSpread, float]:
    """Return the error of ``layer.output[:, rows]`` and the saturated fraction of core elements.

    The heads must be merged side by side: a row of the layer is a row of every head.
    """
    core, weights, semantics = restrict(layer.core, rows), layer.weights, layer.core.semantics
    query, key, value = layer.tokens
    chosen = None if rows.numel() == query.shape[1] else rows
    heads, memory = core.given_query, "bias_k" in core.learned
    keys, values = (
        each[..., : key.shape[1], :] if memory else each for each in (core.given_key, core.value)
    )
    carried = Carried(
        query=_head_variance(query, weights.q, weights.q_bias, heads, semantics, contract, chosen),
        key=_head_variance(key, weights.k, weights.k_bias, keys, semantics, contract),
        value=_head_variance(value, weights.v, weights.v_bias, values, semantics, contract),
    )
    carried = carried.with_exact_key() if memory else carried
    spread, saturated = core_spread(
        core, contract, deviations, carried, mixed=weights.o is not None
    )
    merged = ErrorSpread(
        **{name: golden.merge_heads(part, semantics) for name, part in vars(spread).items()}
    )
    return _output_spread(merged, layer, contract, rows), saturated


def _head_variance(
    tokens: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    heads: Tensor,
    semantics: golden.Semantics,
    contract: Contract,
    chosen: Tensor | None = None,
) -> Tensor | None:
    """Return the variance of projected tokens as heads, repeated like ``heads [B, H, L, D]``."""
    if moves_exactly(matrix, bias, contract):
        return None
    mixes_rows = semantics.head_split == "reinterpret"
    if chosen is not None and not mixes_rows:
        tokens = tokens[:, chosen]

    def as_heads(projected: Tensor) -> Tensor:
        split = golden.split_heads(projected, matrix.shape[0] // heads.shape[-1], semantics)
        repeated = golden.repeat_heads(split, heads.shape[1], semantics)
        return repeated[:, :, chosen] if chosen is not None and mixes_rows else repeated

    terms = as_heads(squared_terms(tokens, matrix, contract))
    if bias is not None and mixes_rows:
        bias = as_heads(bias.expand(tokens.shape[0], tokens.shape[1], -1))
    elif bias is not None:
        bias = as_heads(bias.expand(1, 1, -1))
    return rounded_variance(terms, heads, bias, matrix.shape[1], contract)


def _output_spread(
    merged: ErrorSpread, layer: golden.MultiHeadAttention, contract: Contract, rows: Tensor
) -> ErrorSpread:
    weights, tokens, result = layer.weights, layer.merged, layer.output
    if weights.o is None:
        return merged
    if rows.numel() < result.shape[1]:
        tokens, result = tokens[:, rows], result[:, rows]
    if layer.core.semantics.empty_rows == "nan":
        tokens, result = tokens.nan_to_num(nan=0.0), result.nan_to_num(nan=0.0)
    return projected_spread(merged, tokens, result, weights.o, weights.o_bias, contract)


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """The size of a correct candidate's errors on the judged rows.

    rows: the judged query rows, int64 ``[R]``, ascending: all of them if few.
    bound: exceeded by an error in one check of 1e9; float64, ``[B, H, R, Dv]`` for the core and
        ``[B, R, Eo]`` for the layer.
    scale: the typical size of each error, of the bound's shape.
    deviation: the deviation of errors evenly distributed within their bounds, for coarse formats.
    result: the exact results without a bias added last, of the bound's shape.
    slope: the derivative of the result by the logarithm of the logit scale, of the bound's shape.
    scale_rounding: the relative error of the logit scale itself allowed by the contract.
    deviations: the width of the bound in deviations.
    saturated: the fraction of core elements whose error is bounded by the values they average
        rather than by the roundings.
    """

    rows: Tensor
    bound: Tensor
    scale: Tensor
    deviation: Tensor
    result: Tensor
    slope: Tensor
    scale_rounding: float
    deviations: float
    saturated: float


def has_statistical_bound(semantics: golden.Semantics) -> bool:
    """Tell whether the model holds at a point: weights sum to one, layer rows are head rows.

    Elsewhere, and where a user's function changes the scores, only the worst case judges.
    """
    merged = semantics.head_merge in ("blocks", "interleaved")
    return is_normalised(semantics) and merged and semantics.score_mod is None


def core_statistics(
    attention: golden.Attention, contract: Contract, *, rows: Tensor | None = None
) -> Statistics:
    """The statistical bound of ``attention.output``; ValueError where the model does not hold.

    ``rows`` are the judged rows of a longer problem where ``attention`` holds nothing but them.
    """
    _check(attention.semantics)
    chosen = attention
    if rows is None:
        rows = sampled_rows(attention.query.shape[-2])
        chosen = restrict(attention, rows)
    deviations = deviations_for(chosen.output.numel())
    if chosen.weights.numel() == 0 or chosen.output.numel() == 0:
        return _exact(rows, chosen.output, deviations)
    spread, saturated = core_spread(chosen, contract, deviations)
    result = chosen.output.nan_to_num(nan=0.0)
    rounding = scale_rounding(attention.scale, contract) + scale_error(chosen, contract)
    rounding += _cut_operands(spread, result, contract, products=model.PRODUCTS_OF_CORE)
    return _statistics(spread, result, rows, contract.sides, deviations, (rounding, saturated))


def layer_statistics(layer: golden.MultiHeadAttention, contract: Contract) -> Statistics:
    """The statistical bound of ``layer.output``; ValueError where the model does not hold."""
    _check(layer.core.semantics)
    rows = sampled_rows(layer.output.shape[1])
    batch, _, width = layer.output.shape
    deviations = deviations_for(batch * rows.numel() * width)
    if layer.core.weights.numel() == 0 or layer.output.numel() == 0:
        return _exact(rows, layer.output[:, rows], deviations)
    spread, saturated = layer_spread(layer, contract, rows, deviations)
    result = layer.output[:, rows].nan_to_num(nan=0.0)
    if layer.weights.o_bias is not None:
        result = result - layer.weights.o_bias
    rounding = scale_rounding(layer.core.scale, contract)
    rounding += scale_error(layer.core, contract)
    rounding += _cut_operands(spread, result, contract, products=model.PRODUCTS_OF_LAYER)
    return _statistics(spread, result, rows, contract.sides, deviations, (rounding, saturated))


def _cut_operands(
    spread: ErrorSpread, result: Tensor, contract: Contract, *, products: tuple[int, int]
) -> float:
    """Add the bias of truncated operands: both shrink by half of the largest error on average.

    ``products``: the numbers of products behind a score and behind a result. The shrinking of
    results is added to the linear part of their error; returns the shrinking of scores.
    """
    to_scores, to_results = products
    spread.linear.add_(result.abs(), alpha=to_results * contract.operand_roundoff)
    return to_scores * contract.operand_roundoff


def _statistics(
    spread: ErrorSpread,
    result: Tensor,
    rows: Tensor,
    sides: int,
    deviations: float,
    rounding_and_saturated: tuple[float, float],
) -> Statistics:
    """Add the scale's own rounding, which moves all results along the slope.

    ``rounding_and_saturated`` are this rounding and the saturated fraction.
    """
    rounding, saturated = rounding_and_saturated
    spread.linear.add_(spread.slope.abs(), alpha=rounding)
    return Statistics(
        rows=rows,
        bound=spread.bound(deviations).mul_(sides),
        scale=spread.scale().mul_(sides),
        deviation=spread.deviation().mul_(sides),
        result=result,
        slope=spread.slope,
        scale_rounding=rounding * sides,
        deviations=deviations,
        saturated=saturated,
    )


def _exact(rows: Tensor, output: Tensor, deviations: float) -> Statistics:
    """Return bounds of zero: without keys or without elements nothing is rounded."""
    zeros = torch.zeros_like(output)
    return Statistics(
        rows=rows,
        bound=zeros,
        scale=zeros,
        deviation=zeros,
        result=zeros,
        slope=zeros,
        scale_rounding=0.0,
        deviations=deviations,
        saturated=0.0,
    )


def _check(semantics: golden.Semantics) -> None:
    if not has_statistical_bound(semantics):
        msg = "the statistical bound needs weights that sum to one and heads side by side"
        raise ValueError(msg)
