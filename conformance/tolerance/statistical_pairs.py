"""Variances of the independent errors of each query-key pair in the backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import model
from .backward_pass import BackwardPass
from .contract import Contract
from .softmax_and_sum import log_sum_exp_error
from .spread import Carried
from .statistical_scores import exponent_variance
from .storing import score_gradient_stores
from .visible_keys import LiveKeys
from .worst_gradients import gate_error, gated_weight, uncapped


def _total(variance: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return ``sum variance x y`` over the last axis, kept as size 1."""
    return (variance * x * y).sum(dim=-1, keepdim=True)


def independent_columns(
    variance: Tensor, terms: tuple[Tensor, Tensor, Tensor], tokens: Tensor, rows: tuple[Tensor, ...]
) -> Tensor:
    """``sum_j variance_ij (a_ij tokens_je - b_ij first_ie - c_ij second_ie)^2``: ``[.., Lq, E]``.

    ``terms`` are a, b and c ``[.., Lq, Lk]``, ``tokens [.., Lk, E]`` and ``rows`` first and second
    ``[.., Lq, E]``.
    """
    a, b, c = terms
    first, second = rows
    result = (variance * a * a) @ tokens.square()
    result += _total(variance, b, b) * first.square() + _total(variance, c, c) * second.square()
    result -= 2.0 * first * ((variance * a * b) @ tokens)
    result -= 2.0 * second * ((variance * a * c) @ tokens)
    result += 2.0 * _total(variance, b, c) * first * second
    return result.clamp_min_(0.0)


def independent_channels(
    variance: Tensor, terms: tuple[Tensor, Tensor, Tensor], tokens: Tensor, rows: tuple[Tensor, ...]
) -> Tensor:
    """``sum_c variance_ic (a_ij tokens_jc - b_ij first_ic - c_ij second_ic)^2``: ``[.., Lq, Lk]``.

    Shapes are those of :func:`independent_columns`, but for ``variance [.., Lq, C]``.
    """
    a, b, c = terms
    first, second = rows
    result = a * a * (variance @ tokens.square().mT)
    result += b * b * _total(variance, first, first) + c * c * _total(variance, second, second)
    result -= 2.0 * a * b * ((variance * first) @ tokens.mT)
    result -= 2.0 * a * c * ((variance * second) @ tokens.mT)
    result += 2.0 * b * c * _total(variance, first, second)
    return result.clamp_min_(0.0)


def coherent_rows(
    variance: Tensor,
    pairs: Tensor,
    left: Tensor,
    right: Tensor,
    products: tuple[tuple[Tensor, Tensor], ...],
) -> Tensor:
    """Return ``sum_c variance_ic (sum_j pairs_ij left_je right_jc - sum_n u_n,ie v_n,ic)^2``.

    One error of a row's channel c moves all of its pairs at once. ``left`` is ``[.., Lk, E]``,
    ``right [.., Lk, C]``, ``variance [.., Lq, C]`` and ``products`` hold u ``[.., Lq, E]`` and v
    ``[.., Lq, C]``. Returns ``[.., Lq, E]``.
    """
    lengths = max(pairs.shape[-2], pairs.shape[-1])
    table = pairs.shape[0] * pairs.shape[1] * lengths * right.shape[-1]
    step = max(1, model.COHERENT_GRADIENT_CHUNK // max(1, table))
    pieces = []
    for start in range(0, left.shape[-1], step):
        chosen = slice(start, start + step)
        outer = left[..., chosen].unsqueeze(-1) * right.unsqueeze(-2)
        total = (pairs @ outer.flatten(-2)).unflatten(-1, outer.shape[-2:])
        for first, second in products:
            total -= first[..., chosen].unsqueeze(-1) * second.unsqueeze(-2)
        pieces.append((total.square_() @ variance.unsqueeze(-1)).squeeze(-1))
    return torch.cat(pieces, dim=-1) if pieces else left.new_zeros(*pairs.shape[:-1], 0)


def walk(squares: Tensor, result: Tensor, terms: int, unit: float) -> Tensor:
    """The variance of adding up products whose squares sum to ``squares``; see ``model.WALK``."""
    own = (model.WALK * terms + model.PRODUCTS) * unit**2
    return squares * own + result.square() * (model.DRIFT * terms * unit**2)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairVariances:
    """Variances of independent errors, for pairs ``[B, H, Lq, Lk]`` and rows ``[B, H, Lq, 1]``.

    exponent: each logit, by its own roundings.
    slope: the slope of the softcap, by its own roundings and by those of its score.
    product: dP, by its own roundings.
    growth: the squared growth of an error of the exponent: exp(x) - 1 over x.
    common: the logarithm of all weights of a row: its log-sum-exp and its sum.
    row_sum: D, without the effect of the exponents.
    weights: weights where they meet the output gradient, by their rounding.
    stored: the gradient of a score, by its roundings.
    largest: the part of the error of a row's sum of dL arriving at each key: at the largest logit,
        and evenly at those that may be the largest.
    """

    exponent: Tensor
    slope: Tensor
    product: Tensor
    growth: Tensor
    common: Tensor
    row_sum: Tensor
    weights: Tensor
    stored: Tensor
    largest: Tensor


def with_operand_roundings(
    gradients: BackwardPass, contract: Contract, incoming: Carried
) -> tuple[Carried, Contract]:
    """Count roundings of operands as errors they carry: one error moves a whole row.

    Query and key are rounded by pre-scaling and, like value and output gradient, on their way into
    a product. Returns the variances and a contract without these roundings, but with those of
    weights and score gradients as operands.
    """
    attention = gradients.attention
    operand = contract.operand_roundoff**2
    scaled = operand + contract.pre_scaling_roundings * contract.unit_roundoff**2

    def total(tokens: Tensor, carried: Tensor | None, relative: float) -> Tensor | None:
        if relative == 0.0:
            return carried
        own = tokens.square() * relative
        return own if carried is None else own + carried

    variances = Carried(
        query=total(attention.query, incoming.query, scaled),
        key=total(attention.key, incoming.key, scaled),
        value=total(attention.value, incoming.value, operand),
        output_gradient=total(gradients.output_gradient, incoming.output_gradient, operand),
    )
    rounded = math.hypot(contract.weight_roundoff, contract.operand_roundoff)
    exact = replace(
        contract, pre_scaling_roundings=0, operand_roundoff=0.0, weight_roundoff=rounded
    )
    return variances.only_attended(gradients.live), exact


def pair_variances(
    gradients: BackwardPass, contract: Contract, incoming: Carried, deviations: float
) -> PairVariances:
    """The variances under a contract without roundings of operands; ``incoming`` are variances."""
    attention, live = gradients.attention, gradients.live
    own, _ = exponent_variance(attention, live, contract, deviations)
    total, _ = exponent_variance(attention, live, contract, deviations, incoming)
    growth = _growth(total, deviations)
    gated = gated_weight(gradients, contract) ** 2
    moved = gradients.slope * (gradients.weight_gradient - gradients.row_sum)
    product = _product_variance(gradients, contract)
    return PairVariances(
        exponent=own * growth,
        slope=_slope_variance(gradients, contract, deviations),
        product=product,
        growth=growth,
        common=_common_variance(gradients, contract),
        row_sum=_row_sum_variance(gradients, product, contract),
        weights=_weight_variance(gradients.weights, live, contract) + gated,
        stored=_stored_variance(gradients, contract) + gated * moved.square(),
        largest=_largest(gradients, deviations * total.sqrt()),
    )


def _growth(variance: Tensor, deviations: float) -> Tensor:
    reach = (deviations * variance.sqrt()).clamp_(
        model.SMALLEST_DENOMINATOR, model.LARGEST_EXPONENT
    )
    return (torch.expm1(reach) / reach).square_()


def _product_variance(gradients: BackwardPass, contract: Contract) -> Tensor:
    """Return the variance of ``dP = dO V^T`` and, for stored scores, its rounding."""
    squares = gradients.output_gradient.square() @ gradients.attention.value.square().mT
    size, unit = gradients.output_gradient.shape[-1], contract.accumulator_roundoff
    variance = walk(squares, gradients.weight_gradient, size, unit)
    if contract.score_roundoff:
        variance += (contract.score_roundoff * gradients.weight_gradient).square()
        variance += contract.underflow**2
    return variance


def _slope_variance(gradients: BackwardPass, contract: Contract, deviations: float) -> Tensor:
    """Return the variance of ``1 - tanh^2`` of an inexact score; zero without a softcap."""
    attention = gradients.attention
    if attention.softcap is None:
        return torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    scores, _ = exponent_variance(uncapped(attention), gradients.live, contract, deviations)
    own = model.SLOPE_ROUNDINGS * math.hypot(contract.accumulator_roundoff, contract.score_roundoff)
    return scores * gradients.curvature.square() + own**2


def _common_variance(gradients: BackwardPass, contract: Contract) -> Tensor:
    """Return the variance of the log-sum-exp, the sum of weights, and the rescaling of blocks."""
    length, unit = gradients.live.key_length, contract.accumulator_roundoff
    logarithm = log_sum_exp_error(gradients.attention, gradients.live, contract)
    blocks = math.ceil(length / contract.key_block)
    rescaling = blocks * (contract.exp_error + model.RESCALE_ROUNDINGS) ** 2
    sums = model.NORMALISED_DRIFT * length + model.RATIO_ROUNDINGS
    return logarithm.nan_to_num(nan=0.0).square() + (rescaling + sums) * unit**2


def _weight_variance(weights: Tensor, live: LiveKeys, contract: Contract) -> Tensor:
    """Return the variance of storing weights: relative, or lost where they underflow."""
    squares = weights.square()
    divided_last = model.PARTIAL_STORES * contract.score_roundoff**2
    variance = squares * (contract.weight_roundoff**2 + divided_last)
    return live.only(variance + squares.clamp_max(contract.weight_underflow**2))


def _row_sum_variance(gradients: BackwardPass, product: Tensor, contract: Contract) -> Tensor:
    """Return the variance of D: of ``rowsum(dO * O)`` with a rounded O plus ``sum p dP``."""
    attention, live, unit = gradients.attention, gradients.live, contract.accumulator_roundoff
    length, size = live.key_length, gradients.output_gradient.shape[-1]
    weights, squares = gradients.weights, gradients.output_gradient.square()
    terms = gradients.weights * gradients.weight_gradient
    rounded = _weight_variance(weights, live, contract)
    blocks = math.ceil(length / contract.key_block)
    sums = (model.WALK * length + blocks + model.NUMERATOR_ROUNDINGS) * unit**2
    drift = (model.NORMALISED_DRIFT * length + blocks + model.RATIO_ROUNDINGS) * unit**2
    output = (rounded + weights.square() * sums) @ attention.value.square()
    output += attention.output.square() * (contract.unit_roundoff**2 + drift)
    by_output = (squares * output).sum(dim=-1, keepdim=True)
    products = (squares * attention.output.square()).sum(dim=-1, keepdim=True)
    by_output += walk(products, gradients.row_sum, size, unit)
    by_terms = weights.square() * product
    if contract.score_roundoff:
        by_terms += rounded * gradients.weight_gradient.square()
    total = walk(terms.square().sum(dim=-1, keepdim=True), gradients.row_sum, length, unit)
    gate = gate_error(gradients, contract)
    return by_output + by_terms.sum(dim=-1, keepdim=True) + total + gate**2


def _stored_variance(gradients: BackwardPass, contract: Contract) -> Tensor:
    """Return the variance of roundings between dP and the product with query or key."""
    unit = contract.accumulator_roundoff
    weights, slope = gradients.weights, gradients.slope
    difference = gradients.weight_gradient - gradients.row_sum
    sizes = gradients.weight_gradient.square() + gradients.row_sum.square()
    variance = (weights * slope).square() * sizes * (model.SCORE_GRADIENT_ROUNDINGS * unit**2)
    times = score_gradient_stores(gradients, contract)
    variance += gradients.score_gradient.square() * (times * contract.weight_roundoff**2)
    if contract.score_roundoff:
        rounded = _weight_variance(weights, gradients.live, contract)
        variance += rounded * (slope * difference).square()
    variance += times * contract.weight_underflow**2
    return gradients.live.only(variance)


def _largest(gradients: BackwardPass, reach: Tensor) -> Tensor:
    logits, largest = gradients.attention.logits, gradients.live.largest
    alone = (logits == largest) & (logits > -math.inf)
    close = (logits + reach >= (logits - reach).amax(dim=-1, keepdim=True)) & (logits > -math.inf)
    even = close / close.sum(dim=-1, keepdim=True).clamp_min(1)
    return torch.maximum(alone.double(), even)
