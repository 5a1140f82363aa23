"""The worst-case error of the gradients of attention, up to their last rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .backward_pass import BackwardPass
from .contract import Contract
from .spread import Carried
from .storing import (
    backward_contract,
    key_block_stores,
    query_block_stores,
    score_gradient_stores,
    worst_of_stores,
)
from .visible_keys import has_sink
from .worst_pairs import PairErrors, gate_unit, grown, pair_errors, sum_error


@dataclass(frozen=True, kw_only=True, eq=False)
class WorstErrors:
    """Errors of the gradients per query head, before they are stored; ``bias`` is for each pair.

    ``sink [B, H, Lq, 1]`` is for the gradient of a sink in each row, None without one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    sink: Tensor | None


def worst_errors(gradients: BackwardPass, contract: Contract, incoming: Carried) -> WorstErrors:
    """Propagate every rounding through the backward pass by the triangle inequality."""
    contract = backward_contract(contract)
    incoming = incoming.only_attended(gradients.live)
    pairs = pair_errors(gradients, contract, incoming)
    own = _stored(
        _sloped(pairs.logit_gradient, gradients, gradients.slope, pairs.slope),
        gradients.score_gradient,
        score_gradient_stores(gradients, contract),
        contract,
    )
    # The error of D moves a whole row: p times it, slope included.
    steepest = gradients.slope.abs() + pairs.slope
    shared = (gradients.weights + pairs.weights) * steepest * pairs.row_sum
    shared += steepest * pairs.zero_sum * pairs.reaches
    return WorstErrors(
        query=_query_error(gradients, pairs, own, contract, incoming),
        key=_key_error(gradients, own + shared, contract, incoming),
        value=_value_error(gradients, pairs, contract, incoming),
        bias=_bias_error(gradients, pairs, contract),
        sink=_sink_error(gradients, pairs, contract) if has_sink(gradients.attention) else None,
    )


def _sloped(error: Tensor, gradients: BackwardPass, slope: Tensor, slope_error: Tensor) -> Tensor:
    """The error of the logit's gradient times a slope that is off itself."""
    size = gradients.logit_gradient.abs() + error
    return error * slope.abs() + slope_error * size


def _stored(error: Tensor, exact: Tensor, times: int, contract: Contract) -> Tensor:
    """Round to the dtype of the weights some times."""
    rounding = times * contract.weight_roundoff * (1.0 + contract.weight_roundoff) ** times
    return error * (1.0 + rounding) + rounding * exact.abs()


def _lost(gradients: BackwardPass, contract: Contract) -> float:
    """What underflow takes from a score's gradient, on either side of slope and scale."""
    each = contract.accumulator_underflow + contract.weight_underflow
    factor = 1.0 + abs(gradients.attention.scale)
    if gradients.function_slope is not None and gradients.slope.numel():
        factor *= max(1.0, float(gradients.slope.abs().max()))
    return score_gradient_stores(gradients, contract) * each * factor


def _product_error(terms: int, contract: Contract) -> float:
    """The relative error of ``dS K`` or ``dS^T Q`` with the scale on either of the two."""
    unit = contract.unit_roundoff
    return sum_error(terms, contract) + contract.pre_scaling_roundings * unit * (1.0 + unit)


def _query_error(
    gradients: BackwardPass,
    pairs: PairErrors,
    own: Tensor,
    contract: Contract,
    incoming: Carried,
) -> Tensor:
    """``scale dS K``; the error of D meets the row's mean of the keys, not each key."""
    attention, live = gradients.attention, gradients.live
    scale = abs(attention.scale)
    key = grown(live.only_attended(attention.key), incoming.key)
    upper = gradients.score_gradient.abs() + own
    mean = (gradients.weights * gradients.slope) @ attention.key
    moved = (gradients.weights + pairs.weights) * (gradients.slope.abs() + pairs.slope)
    apart = moved - gradients.weights * gradients.slope.abs()
    around = mean.abs() + apart @ key
    if incoming.key is not None:
        around += moved @ incoming.key
    error = scale * (own @ key + pairs.row_sum * around)
    error += scale * _at_largest(pairs, gradients.slope.abs() + pairs.slope, key)
    if incoming.key is not None:
        error += scale * (gradients.score_gradient.abs() @ incoming.key)
    upper = upper + moved * pairs.row_sum
    sizes = scale * (upper @ key)
    error += _product_error(live.key_length, contract) * sizes
    error += worst_of_stores(sizes, key_block_stores(live.key_length, contract), contract)
    flushed = key.sum(dim=-2, keepdim=True)
    error += contract.accumulator_underflow * (live.key_length + scale * flushed)
    return error.add_(_lost(gradients, contract) * flushed)


def _at_largest(pairs: PairErrors, steepest: Tensor, key: Tensor) -> Tensor:
    """What the error of the row's sum does through the largest logit: ``[B, H, Lq, D]``."""
    each = (pairs.reaches * steepest) @ key
    largest = steepest.amax(dim=-1, keepdim=True) * key.amax(dim=-2, keepdim=True)
    return pairs.zero_sum * torch.minimum(each, largest)


def _key_error(
    gradients: BackwardPass, error: Tensor, contract: Contract, incoming: Carried
) -> Tensor:
    """``scale dS^T Q`` for dS off by ``error``."""
    scale = abs(gradients.attention.scale)
    query = grown(gradients.attention.query, incoming.query)
    exact = gradients.score_gradient.abs()
    terms = query.shape[-2]
    total = scale * (error.mT @ query)
    if incoming.query is not None:
        total += scale * (exact.mT @ incoming.query)
    sizes = scale * ((exact + error).mT @ query)
    total += _product_error(terms, contract) * sizes
    total += worst_of_stores(sizes, query_block_stores(terms, contract), contract)
    flushed = query.sum(dim=-2, keepdim=True)
    total += contract.accumulator_underflow * (terms + scale * flushed)
    return gradients.live.only_attended(total.add_(_lost(gradients, contract) * flushed))


def _value_error(
    gradients: BackwardPass, pairs: PairErrors, contract: Contract, incoming: Carried
) -> Tensor:
    """``P^T dO``; a row without a key may have equal weights that err by their division only."""
    weights = gradients.attention.weights
    error = pairs.stored_weights
    terms = weights.shape[-2]
    if gradients.live.empty is not None:
        relative = sum_error(weights.shape[-1], contract) + contract.weight_roundoff
        mean = torch.where(gradients.live.empty, weights * relative, 0.0)
        error = error + mean + contract.weight_underflow * (mean > 0.0)
    gradient = grown(gradients.output_gradient, incoming.output_gradient)
    total = error.mT @ gradient
    if incoming.output_gradient is not None:
        total += weights.mT @ incoming.output_gradient
    sizes = (weights + error).mT @ gradient
    total += sum_error(terms, contract) * sizes
    total += worst_of_stores(sizes, query_block_stores(terms, contract), contract)
    flushed = gradient.sum(dim=-2, keepdim=True) + terms
    return total.add_(contract.accumulator_underflow * flushed)


def _bias_error(gradients: BackwardPass, pairs: PairErrors, contract: Contract) -> Tensor:
    """The gradient by a bias of each pair, stored like that of a score."""
    semantics = gradients.attention.semantics
    error = pairs.logit_gradient + (gradients.weights + pairs.weights) * pairs.row_sum
    error += pairs.zero_sum * pairs.reaches
    slope_error = torch.zeros_like(pairs.cap_slope)
    if semantics.bias_order == "before-scale":
        slope_error = pairs.slope * abs(gradients.attention.scale)
    elif semantics.caps("bias"):
        slope_error = pairs.cap_slope
    sloped = _sloped(error, gradients, gradients.bias_slope, slope_error)
    exact = gradients.logit_gradient * gradients.bias_slope
    times = score_gradient_stores(gradients, contract)
    return _stored(sloped, exact, times, contract).add_(_lost(gradients, contract))


def _sink_error(gradients: BackwardPass, pairs: PairErrors, contract: Contract) -> Tensor:
    """The gradient by the logit of the sink, ``- p D``, stored like that of a score.

    A gate behind the attention knows p as one minus its share: to an absolute error.
    """
    error = pairs.logit_gradient + (gradients.weights + pairs.weights) * pairs.row_sum
    error += pairs.zero_sum * pairs.reaches
    times = score_gradient_stores(gradients, contract)
    exact = gradients.logit_gradient[..., -1:]
    sizes = (gradients.weights * gradients.weight_gradient.abs()).sum(dim=-1, keepdim=True)
    gated = error[..., -1:] + gate_unit(contract) * sizes
    return _stored(gated, exact, times, contract) + _lost(gradients, contract)
