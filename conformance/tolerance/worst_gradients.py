"""The worst-case errors of the backward pass: of each query-key pair, then of the gradients.

Both are up to the last rounding of the gradients.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .attention_bound import one_sided_bound
from .backward_pass import BackwardPass
from .contract import Contract, gamma
from .modified_gradients import function_slope_error
from .softmax_and_sum import capped_error, exponent_error, gate_unit, log_sum_exp_error
from .spread import Carried
from .storing import (
    backward_contract,
    key_block_stores,
    query_block_stores,
    score_gradient_stores,
    worst_of_stores,
)
from .visible_keys import has_memory, has_sink


@dataclass(frozen=True, kw_only=True, eq=False)
class PairErrors:
    """The errors of intermediate values: ``[B, H, Lq, Lk]``, sums of a row ``[B, H, Lq, 1]``.

    ``weights``: P where it meets dP - D; ``stored_weights``: P where it meets the output gradient;
    ``logit_gradient``: dL without the effect of D's error ``row_sum``; ``slope``: the derivative of
    a logit by its score; ``cap_slope``: the softcap's part of it; ``zero_sum``: the sum of a row of
    dL; ``reaches`` marks the keys whose logit may be the largest.
    """

    weights: Tensor
    stored_weights: Tensor
    row_sum: Tensor
    logit_gradient: Tensor
    cap_slope: Tensor
    slope: Tensor
    zero_sum: Tensor
    reaches: Tensor


def pair_errors(gradients: BackwardPass, contract: Contract, incoming: Carried) -> PairErrors:
    """Every error ``[B, H, Lq, Lk]`` by the triangle inequality."""
    exponent = exponent_error(gradients.attention, gradients.live, contract, incoming)
    reaches = _may_be_largest(gradients, exponent)
    error = _weight_error(gradients, exponent, contract) + gated_weight(gradients, contract)
    stored = _rounded_weights(gradients.weights, error, contract)
    if contract.score_roundoff:
        error = stored
    product = _weight_gradient_error(gradients, contract, incoming)
    row_sum = torch.maximum(
        _sum_of_products_error(gradients, stored, product, contract),
        _sum_of_outputs_error(gradients, contract, incoming),
    )
    row_sum = row_sum + gate_error(gradients, contract) + _log_sum_exp_term(gradients, contract)
    logit_gradient = _logit_gradient_error(gradients, error, product, row_sum, contract)
    cap_slope = _slope_error(gradients, contract, incoming)
    return PairErrors(
        weights=error,
        stored_weights=stored,
        row_sum=row_sum,
        logit_gradient=logit_gradient,
        cap_slope=cap_slope,
        slope=_modified_slope_error(gradients, cap_slope, contract, incoming),
        zero_sum=_zero_sum_error(gradients, error, logit_gradient, row_sum, contract),
        reaches=reaches,
    )


def sum_error(terms: int, contract: Contract) -> float:
    """The relative error of a product over n tokens, added up in blocks."""
    count = terms + math.ceil(terms / contract.key_block) + model.SUM_ROUNDINGS
    return gamma(count, contract.accumulator_roundoff) + contract.operand_error


def gate_error(gradients: BackwardPass, contract: Contract) -> Tensor | float:
    """What the row term may be off by where a gate behind the attention adds the last key.

    That of the attention without this key, at most the mean of ``|dP|``, is taken off and added
    again but for the share of the key, whose own is ``|dP|``: ``[B, H, Lq, 1]``; 0.0 without a sink
    or a memory.
    """
    if not (has_sink(gradients.attention) or has_memory(gradients.attention)):
        return 0.0
    weights, sizes = gradients.weights[..., :-1], gradients.weight_gradient.abs()
    share = weights.sum(dim=-1, keepdim=True).clamp_min(model.SMALLEST_DENOMINATOR)
    mean = (weights * sizes[..., :-1]).sum(dim=-1, keepdim=True) / share
    return gate_unit(contract) * (mean + sizes[..., -1:])


def _log_sum_exp_term(gradients: BackwardPass, contract: Contract) -> Tensor | float:
    """What the row term may be off by where the gradient of a log-sum-exp is taken off it.

    Or is added to each logit's gradient by itself.
    """
    if gradients.of_lse is None:
        return 0.0
    given = gradients.of_lse.double().abs().unsqueeze(-1)
    unit = model.LSE_GRADIENT_ROUNDINGS * contract.accumulator_roundoff
    return unit * (gradients.row_sum.abs() + 2.0 * given)


def gated_weight(gradients: BackwardPass, contract: Contract) -> Tensor | float:
    """The error ``[B, H, Lq, Lk]`` of a memory's weight as one minus that of a gate, else 0.0."""
    if not has_memory(gradients.attention):
        return 0.0
    error = torch.zeros_like(gradients.weights)
    error[..., -1] = gate_unit(contract)
    return error


def grown(size: Tensor, error: Tensor | None) -> Tensor:
    """The largest magnitude within an error."""
    return size.abs() if error is None else size.abs() + error


def _may_be_largest(gradients: BackwardPass, error: Tensor) -> Tensor:
    """Mark the logits that, with their errors, may be the largest of their row."""
    logits = gradients.attention.logits
    return (logits + error >= (logits - error).amax(dim=-1, keepdim=True)) & (logits > -math.inf)


def _weight_error(gradients: BackwardPass, error: Tensor, contract: Contract) -> Tensor:
    """Return the error of recomputed weights, divided by their sum or not.

    With exponents off by up to e, the sum is off by a factor between ``sum p exp(-e)`` and ``sum p
    exp(e)``, and by Cauchy and Schwarz one over the former is at most the latter.
    """
    attention, live, weights = gradients.attention, gradients.live, gradients.weights
    total = attention.weights.amax(dim=-1, keepdim=True).log_()
    distance = (attention.logits - (live.largest - total)).nan_to_num(nan=-math.inf)
    reach = live.only((distance + error).clamp_max(model.LARGEST_EXPONENT).exp_())
    row = reach.sum(dim=-1, keepdim=True).clamp_min_(1.0).log_()
    row.add_(log_sum_exp_error(attention, live, contract).nan_to_num(nan=0.0))
    row.add_(sum_error(live.key_length, contract))
    row.add_(model.DIVISION_ROUNDINGS * contract.accumulator_roundoff)
    error = error + row
    excess = weights * torch.expm1(error.clamp_max(model.LARGEST_GROWTH))
    if bool((error > model.LARGEST_GROWTH).any()):  # weights that float64 lost may come back
        excess = torch.exp((distance + error).clamp_max_(model.LARGEST_EXPONENT))
    return live.only(excess.add_(contract.accumulator_underflow))


def _rounded_weights(weights: Tensor, error: Tensor, contract: Contract) -> Tensor:
    if not contract.weight_roundoff:
        return error
    upper = weights + error
    # Divided last, the sum of a row and the gradient that is divided by it are stored, too.
    rounding = contract.weight_roundoff + model.PARTIAL_STORES * contract.score_roundoff
    return error + rounding * upper + upper.clamp_max(contract.weight_underflow)


def _weight_gradient_error(
    gradients: BackwardPass, contract: Contract, incoming: Carried
) -> Tensor:
    """Return the error of ``dP = dO V^T``."""
    size = gradients.output_gradient.shape[-1]
    relative = gamma(size + model.SUM_ROUNDINGS, contract.accumulator_roundoff)
    relative += contract.operand_error
    gradient = grown(gradients.output_gradient, incoming.output_gradient)
    value = grown(gradients.attention.value, incoming.value)
    error = (gradient * relative) @ value.transpose(-1, -2)
    if incoming.output_gradient is not None:
        error += incoming.output_gradient @ value.transpose(-1, -2)
    if incoming.value is not None:
        error += gradients.output_gradient.abs() @ incoming.value.transpose(-1, -2)
    lost = gradient.sum(-1, keepdim=True) + value.sum(-1).unsqueeze(-2) + size
    error += contract.accumulator_underflow * lost
    if contract.score_roundoff:
        error += contract.score_roundoff * (gradients.weight_gradient.abs() + error)
        error += contract.underflow
    return error


def _sum_of_products_error(
    gradients: BackwardPass, weight_error: Tensor, product_error: Tensor, contract: Contract
) -> Tensor:
    """Return the error of ``D = sum p dP``, as in softmax's own backward pass."""
    size = gradients.weight_gradient.abs()
    upper = gradients.weights + weight_error
    relative = sum_error(gradients.live.key_length, contract)
    terms = weight_error * size + upper * product_error + relative * upper * (size + product_error)
    lost = contract.accumulator_underflow * (gradients.live.key_length + 1)
    return gradients.live.only(terms).sum(dim=-1, keepdim=True) + lost


def _sum_of_outputs_error(gradients: BackwardPass, contract: Contract, incoming: Carried) -> Tensor:
    """Return the error of ``D = rowsum(dO * O)``, as in FlashAttention, from a stored output."""
    attention = gradients.attention
    error = one_sided_bound(attention, contract, incoming)
    size = gradients.output_gradient.shape[-1]
    relative = gamma(size + model.SUM_ROUNDINGS, contract.accumulator_roundoff)
    upper = attention.output.abs() + error
    gradient = grown(gradients.output_gradient, incoming.output_gradient)
    terms = gradients.output_gradient.abs() * error + relative * gradient * upper
    if incoming.output_gradient is not None:
        terms += incoming.output_gradient * upper
    terms += contract.accumulator_underflow * (1.0 + gradient + upper)
    return terms.sum(dim=-1, keepdim=True)


def _logit_gradient_error(
    gradients: BackwardPass,
    weight_error: Tensor,
    product_error: Tensor,
    row_sum_error: Tensor,
    contract: Contract,
) -> Tensor:
    """Return the error of ``dL = P (dP - D)`` without the effect of D's error."""
    upper = gradients.weights + weight_error
    difference = (gradients.weight_gradient - gradients.row_sum).abs()
    sizes = gradients.weight_gradient.abs() + product_error
    sizes += gradients.row_sum.abs() + row_sum_error
    roundings = model.SCORE_GRADIENT_ROUNDINGS * contract.accumulator_roundoff
    error = weight_error * difference + upper * (product_error + roundings * sizes)
    return gradients.live.only(error.add_(contract.accumulator_underflow))


def _zero_sum_error(
    gradients: BackwardPass,
    weight_error: Tensor,
    logit_gradient_error: Tensor,
    row_sum_error: Tensor,
    contract: Contract,
) -> Tensor:
    """Return the error of ``sum dL = 0``.

    A softmax written out as exp(s - max s) passes the gradient through the maximum, too: minus this
    sum, which consists of errors alone, arrives at the largest logit.
    """
    error = logit_gradient_error + (gradients.weights + weight_error) * row_sum_error
    relative = sum_error(gradients.live.key_length, contract)
    error = error * (1.0 + relative) + relative * gradients.logit_gradient.abs()
    return error.sum(dim=-1, keepdim=True)


def _slope_error(gradients: BackwardPass, contract: Contract, incoming: Carried) -> Tensor:
    """Return the error of ``1 - tanh^2``, zero without a softcap."""
    attention = gradients.attention
    if attention.softcap is None:
        return torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    error = exponent_error(uncapped(attention), gradients.live, contract, incoming)
    nearest = (attention.scores.abs() - error).clamp_min_(0.0).div_(attention.softcap)
    change = 2.0 / torch.cosh(nearest.clamp_max_(model.LARGEST_GROWTH)).square_()
    change.clamp_max_(model.STEEPEST_SLOPE)
    if gradients.function_slope is not None and attention.semantics.caps("bias"):
        change.fill_(model.STEEPEST_SLOPE)  # what is capped is no longer the score
    own = model.SLOPE_ROUNDINGS * (contract.accumulator_roundoff + contract.score_roundoff)
    return error.mul_(change).div_(attention.softcap).add_(own).clamp_max_(1.0)


def _modified_slope_error(
    gradients: BackwardPass, cap_slope: Tensor, contract: Contract, incoming: Carried
) -> Tensor:
    attention, function = gradients.attention, gradients.function_slope
    if function is None:
        return cap_slope
    scores = capped_error(attention, gradients.live, contract, incoming)
    error = function_slope_error(attention, scores, function, contract)
    capped = torch.where(function == 0.0, 1.0, gradients.slope / function).abs()
    return capped * error + cap_slope * (function.abs() + error)


def uncapped(attention: golden.Attention) -> golden.Attention:
    """An attention whose exponent errors are those of the scores before the softcap."""
    semantics = attention.semantics.replace(softcap_order="after-mask")
    if not attention.semantics.caps("bias"):  # a user's function comes behind the cap
        semantics = semantics.replace(score_mod=None)
    return dataclasses.replace(attention, bias=None, semantics=semantics)


@dataclass(frozen=True, kw_only=True, eq=False)
class WorstErrors:
    """Errors of the gradients per query head, before stores; ``score``, ``bias`` for each pair.

    ``sink [B, H, Lq, 1]`` is for the gradient of a sink in each row, None without one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    score: Tensor
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
    # The error of D moves a whole row: times p and the slope.
    steepest = gradients.slope.abs() + pairs.slope
    shared = (gradients.weights + pairs.weights) * steepest * pairs.row_sum
    shared += steepest * pairs.zero_sum * pairs.reaches
    return WorstErrors(
        query=_query_error(gradients, pairs, own, contract, incoming),
        key=_key_error(gradients, own + shared, contract, incoming),
        value=_value_error(gradients, pairs, contract, incoming),
        score=own + shared,
        bias=_bias_error(gradients, pairs, contract),
        sink=_sink_error(gradients, pairs, contract) if has_sink(gradients.attention) else None,
    )


def _sloped(error: Tensor, gradients: BackwardPass, slope: Tensor, slope_error: Tensor) -> Tensor:
    """Return the error of the logit's gradient times an inexact slope."""
    size = gradients.logit_gradient.abs() + error
    return error * slope.abs() + slope_error * size


def _stored(error: Tensor, exact: Tensor, times: int, contract: Contract) -> Tensor:
    """Return the error after rounding to the dtype of the weights ``times`` times."""
    rounding = times * contract.weight_roundoff * (1.0 + contract.weight_roundoff) ** times
    return error * (1.0 + rounding) + rounding * exact.abs()


def _lost(gradients: BackwardPass, contract: Contract) -> float:
    """Return the loss of a score's gradient by underflow, on both sides of slope and scale."""
    each = contract.accumulator_underflow + contract.weight_underflow
    factor = 1.0 + abs(gradients.attention.scale)
    if gradients.function_slope is not None and gradients.slope.numel():
        factor *= max(1.0, float(gradients.slope.abs().max()))
    return score_gradient_stores(gradients, contract) * each * factor


def _product_error(terms: int, contract: Contract) -> float:
    """Return the relative error of ``dS K`` or ``dS^T Q``, the scale on either operand."""
    unit = contract.unit_roundoff
    return sum_error(terms, contract) + contract.pre_scaling_roundings * unit * (1.0 + unit)


def _query_error(
    gradients: BackwardPass,
    pairs: PairErrors,
    own: Tensor,
    contract: Contract,
    incoming: Carried,
) -> Tensor:
    """Return the error of ``scale dS K``; D's error meets the row's mean of keys, not each key."""
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
    """Return the effect of the row sum's error through the largest logit: ``[B, H, Lq, D]``."""
    each = (pairs.reaches * steepest) @ key
    largest = steepest.amax(dim=-1, keepdim=True) * key.amax(dim=-2, keepdim=True)
    return pairs.zero_sum * torch.minimum(each, largest)


def _key_error(
    gradients: BackwardPass, error: Tensor, contract: Contract, incoming: Carried
) -> Tensor:
    """Return the error of ``scale dS^T Q`` for dS off by ``error``."""
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
    """Return the error of ``P^T dO``; equal weights of an empty row err by their division only."""
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
    """Return the error of the gradient by each pair's bias, stored like that of a score."""
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
    """Return the error of the gradient by the sink's logit, ``- p D``, stored like a score's.

    A gate behind the attention computes p as one minus the gate's share: to an absolute error.
    """
    error = pairs.logit_gradient + (gradients.weights + pairs.weights) * pairs.row_sum
    error += pairs.zero_sum * pairs.reaches
    times = score_gradient_stores(gradients, contract)
    exact = gradients.logit_gradient[..., -1:]
    sizes = (gradients.weights * gradients.weight_gradient.abs()).sum(dim=-1, keepdim=True)
    gated = error[..., -1:] + gate_unit(contract) * sizes
    return _stored(gated, exact, times, contract) + _lost(gradients, contract)
