"""The worst-case errors of each query-key pair in the backward pass."""

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
from .softmax_and_sum import capped_error, exponent_error, log_sum_exp_error
from .spread import Carried
from .visible_keys import has_sink


@dataclass(frozen=True, kw_only=True, eq=False)
class PairErrors:
    """How far each part may be off: ``[B, H, Lq, Lk]``, sums of a row ``[B, H, Lq, 1]``.

    ``weights`` is for P where it meets dP - D, ``stored_weights`` where it meets the output
    gradient, ``logit_gradient`` for dL but for what the error ``row_sum`` of D causes, and
    ``slope`` for the derivative of a logit by its score, of which ``cap_slope`` is that of a
    softcap. ``zero_sum`` is for the sum of a row of dL, and ``reaches`` marks the keys whose logit
    may be the largest.
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
    error = _weight_error(gradients, exponent, contract)
    stored = _rounded_weights(gradients.weights, error, contract)
    if contract.score_roundoff:
        error = stored
    product = _weight_gradient_error(gradients, contract, incoming)
    row_sum = torch.maximum(
        _sum_of_products_error(gradients, stored, product, contract),
        _sum_of_outputs_error(gradients, contract, incoming),
    )
    row_sum = row_sum + gate_error(gradients, contract)
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


def gate_unit(contract: Contract) -> float:
    """The roundings of a gate behind the attention, and of what is stored on either side of it."""
    each = contract.accumulator_roundoff + contract.score_roundoff
    return model.SINK_GATE_ROUNDINGS * each + contract.unit_roundoff


def gate_error(gradients: BackwardPass, contract: Contract) -> Tensor | float:
    """What the row term may be off by where a sink's share is a gate behind the attention.

    That of the attention without the sink, at most the mean of ``|dP|``, is taken off and added
    again but for the share: ``[B, H, Lq, 1]``; 0.0 without a sink.
    """
    if not has_sink(gradients.attention):
        return 0.0
    weights, sizes = gradients.weights[..., :-1], gradients.weight_gradient[..., :-1].abs()
    share = weights.sum(dim=-1, keepdim=True).clamp_min(model.SMALLEST_DENOMINATOR)
    return gate_unit(contract) * ((weights * sizes).sum(dim=-1, keepdim=True) / share)


def grown(size: Tensor, error: Tensor | None) -> Tensor:
    """The largest magnitude within an error."""
    return size.abs() if error is None else size.abs() + error


def _may_be_largest(gradients: BackwardPass, error: Tensor) -> Tensor:
    """Whose logit, with its error, may reach the largest of the row."""
    logits = gradients.attention.logits
    return (logits + error >= (logits - error).amax(dim=-1, keepdim=True)) & (logits > -math.inf)


def _weight_error(gradients: BackwardPass, error: Tensor, contract: Contract) -> Tensor:
    """How far recomputed weights may be from the golden ones, whether divided by their sum or not.

    With exponents off by up to e, the sum is off by a factor between ``sum p exp(-e)`` and
    ``sum p exp(e)``, and by Cauchy and Schwarz one over the former is at most the latter.
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
    if float(error.amax()) > model.LARGEST_GROWTH:  # weights that float64 lost may come back
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
    """The error of ``dP = dO V^T``."""
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
    """The error of ``D = sum p dP``, as softmax's own backward pass computes it."""
    size = gradients.weight_gradient.abs()
    upper = gradients.weights + weight_error
    relative = sum_error(gradients.live.key_length, contract)
    terms = weight_error * size + upper * product_error + relative * upper * (size + product_error)
    lost = contract.accumulator_underflow * (gradients.live.key_length + 1)
    return gradients.live.only(terms).sum(dim=-1, keepdim=True) + lost


def _sum_of_outputs_error(gradients: BackwardPass, contract: Contract, incoming: Carried) -> Tensor:
    """The error of ``D = rowsum(dO * O)``, as FlashAttention computes it from a stored output."""
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
    """The error of ``dL = P (dP - D)`` but for what D's error causes."""
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
    """The error of ``sum dL = 0``.

    A softmax written out as exp(s - max s) lets the gradient pass through the maximum too: minus
    this sum, which is nothing but errors, arrives at the largest logit.
    """
    error = logit_gradient_error + (gradients.weights + weight_error) * row_sum_error
    relative = sum_error(gradients.live.key_length, contract)
    error = error * (1.0 + relative) + relative * gradients.logit_gradient.abs()
    return error.sum(dim=-1, keepdim=True)


def _slope_error(gradients: BackwardPass, contract: Contract, incoming: Carried) -> Tensor:
    """How far ``1 - tanh^2`` may be from the golden slope, zero without a softcap."""
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
    """How far the slope of cap and function together may be off."""
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
