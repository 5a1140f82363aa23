"""The statistical bound: what errors that are independent do not exceed.

Half of the verdict on independent random inputs; structured ones are judged by the worst case only.
Derived in docs/tolerance.md, after Higham and Mary, "A new approach to probabilistic rounding error
analysis", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract
from .prepared import scale_error
from .rows import restrict, sampled_rows
from .spread import Spread, deviations_for
from .statistical_core import core_spread
from .statistical_layer import layer_spread
from .stored_scale import scale_rounding
from .unnormalised import is_normalised


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """How large the errors of a correct candidate are on the judged rows.

    rows
        The judged query rows, int64 ``[R]``, ascending: all of them when they are few.
    bound
        What no error exceeds, but for one check in 1e9; float64, ``[B, H, R, Dv]`` for the core and
        ``[B, R, Eo]`` for the layer.
    scale
        The typical size of each error, of that shape.
    deviation
        The same of roundings that fall evenly within their bounds, where formats are coarse.
    result
        The exact results, without a bias that is added last, of that shape.
    slope
        The derivative of the result by the logarithm of the logit scale, of that shape.
    scale_rounding
        The relative error of the logit scale itself that the contract allows.
    deviations
        How many deviations the bound is wide.
    saturated
        The fraction of core elements whose error is bounded by the values that they average rather
        than by the roundings.
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


def supports(semantics: golden.Semantics) -> bool:
    """Whether this model holds at a point: weights sum to one, a row of the layer is one of heads.

    Elsewhere only the worst case judges, and where a user's function changes the scores.
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


def layer_statistics(
    layer: golden.MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: golden.ProjectionWeights,
    semantics: golden.Semantics,
    contract: Contract,
) -> Statistics:
    """The statistical bound of ``layer.output``, given what the layer was evaluated on.

    ``query [B, Lq, Eq]``, ``key [B, Lk, Ek]``, ``value [B, Lk, Ev]``. Raises ValueError where the
    model does not hold.
    """
    _check(semantics)
    rows = sampled_rows(layer.output.shape[1])
    batch, _, width = layer.output.shape
    deviations = deviations_for(batch * rows.numel() * width)
    if layer.core.weights.numel() == 0 or layer.output.numel() == 0:
        return _exact(rows, layer.output[:, rows], deviations)
    tokens = (query, key, value)
    spread, saturated = layer_spread(layer, tokens, weights, semantics, contract, rows, deviations)
    result = layer.output[:, rows].nan_to_num(nan=0.0)
    if weights.o is not None and weights.o_bias is not None and semantics.output_bias:
        result = result - weights.o_bias.double()
    rounding = scale_rounding(layer.core.scale, contract)
    rounding += scale_error(layer.core, contract)
    rounding += _cut_operands(spread, result, contract, products=model.PRODUCTS_OF_LAYER)
    return _statistics(spread, result, rows, contract.sides, deviations, (rounding, saturated))


def _cut_operands(
    spread: Spread, result: Tensor, contract: Contract, *, products: tuple[int, int]
) -> float:
    """Operands that are cut off all shrink: by half of the largest error on average, both of them.

    ``products`` are how many products stand behind a score and behind a result. What the results
    shrink by is added to the certain part of their error; returned is what the scores shrink by.
    """
    to_scores, to_results = products
    spread.linear.add_(result.abs(), alpha=to_results * contract.operand_roundoff)
    return to_scores * contract.operand_roundoff


def _statistics(
    spread: Spread,
    result: Tensor,
    rows: Tensor,
    sides: int,
    deviations: float,
    found: tuple[float, float],
) -> Statistics:
    """Add the scale's own rounding, which moves all results along the slope.

    ``found`` are that rounding and the fraction that is saturated.
    """
    rounding, saturated = found
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
    """Without keys or without elements there is nothing to round."""
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
    if not supports(semantics):
        msg = "the statistical bound needs weights that sum to one and heads side by side"
        raise ValueError(msg)
