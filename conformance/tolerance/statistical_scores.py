"""The variance of the exponent in each softmax weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import threshold

from conformance._golden import golden

from . import model
from .contract import Contract
from .learned import is_tempered
from .positions import distance_size
from .softmax_and_sum import fills, finite_size, partners_of_query_error
from .spread import EXACT, Carried
from .visible_keys import LiveKeys, has_sink


def coherent_variance(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    slope: Tensor | None,
    query_variance: Tensor | None,
    centred: tuple[Tensor, Tensor],
) -> Tensor | None:
    """The variance ``[B, H, Lq, Dv]`` that errors of query channels give to the output.

    An error of channel c moves every score of the row at once, ``d s_j = a k_jc``, and with them
    the output by ``a sum_j p_j k_jc (v_j - o)``: the covariance of keys and values under the
    weights, not a sum of independent errors. ``centred`` are values and outputs from a common
    centre. None when the query is exact.
    """
    rounding = (
        contract.pre_scaling_roundings * contract.unit_roundoff**2 + contract.operand_roundoff**2
    )
    if rounding == 0.0 and query_variance is None:
        return None
    variance = attention.query.square().mul_(rounding * attention.scale**2)
    if query_variance is not None:
        variance.add_(query_variance, alpha=attention.scale**2)
    key = partners_of_query_error(attention, live)
    weights = attention.weights if slope is None else attention.weights * slope
    rows, channels = variance.shape[-2:]
    if rows * channels * weights.shape[-1] <= model.SMALL_TABLE:
        return _weighted_squares(weights, variance, key, *centred)
    value, output = centred
    key_unit, value_unit = _largest(key), _largest(value)
    # Half the cost in float32: a change of 1e-7 of an error does not count. What is lost below the
    # threshold counts still less, and subnormals are slow.
    squared = _weighted_squares(
        threshold(weights, model.NEGLIGIBLE_WEIGHT, 0.0).float(),
        variance,
        (key / key_unit).float(),
        (value / value_unit).float(),
        (output / value_unit).float(),
    )
    return squared.mul_((key_unit * value_unit) ** 2)


def _largest(tokens: Tensor) -> float:
    return float(tokens.abs().amax()) or 1.0


def _weighted_squares(
    weights: Tensor, variance: Tensor, key: Tensor, value: Tensor, output: Tensor
) -> Tensor:
    """Return ``sum_c V_ic (sum_j w_ij k_jc (v_jd - o_id))^2`` for all rows i: ``[B, H, R, Dv]``.

    Weights ``[B, H, R, Lk]`` and variance ``[B, H, R, D]``; all but the variance (float64) are of
    one dtype.
    """
    mean = (weights @ key).unsqueeze(-1)
    channels = key.transpose(-1, -2).contiguous().unsqueeze(-3)  # [B, H, 1, D, Lk]
    output = output.unsqueeze(-2)
    step = max(1, model.COHERENT_CHUNK // max(1, key.numel()))
    pieces = []
    for first in range(0, weights.shape[-2], step):
        rows = slice(first, first + step)
        weighted = weights[:, :, rows].unsqueeze(-2) * channels  # [B, H, R, D, Lk]
        product = weighted.flatten(2, 3) @ value
        covariance = product.unflatten(2, weighted.shape[2:4])  # [B, H, R, D, Dv]
        covariance.addcmul_(mean[:, :, rows], output[:, :, rows], value=-1.0)
        squares = covariance.square_().double()
        pieces.append(variance[:, :, rows].unsqueeze(-2) @ squares)
    return torch.cat(pieces, dim=2).squeeze(-2)


def scale_slope(attention: golden.Attention, value: Tensor, output: Tensor) -> Tensor:
    """The derivative of the output by the logarithm of the logit scale: ``sum p s (v - o)``.

    ``value`` and ``output`` may both be taken from any centre. A softcap damps each score's share
    by ``1 - tanh^2``; a bias is not scaled.
    """
    shares = attention.weights * attention.scores
    if attention.softcap is not None and not attention.semantics.caps("bias"):
        shares.mul_(1.0 - (attention.capped / attention.softcap).square_())
    return (shares @ value).sub_(shares.sum(dim=-1, keepdim=True) * output)


def exponent_variance(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    deviations: float,
    carried: Carried = EXACT,
) -> tuple[Tensor, Tensor | None]:
    """Return each logit's variance, up to a row's common part, and the softcap's slope.

    ``carried`` are variances. Both results are float64 ``[B, H, Lq, Lk]``; the variance is zero
    where a key is not live. The slope is the largest within reach of the score's own error, None
    without a softcap.
    """
    variance = _score_variance(attention, live, contract, carried)
    slope = _slope_within_reach(attention, variance, deviations)
    unit, stored = contract.accumulator_roundoff, contract.score_roundoff
    if slope is not None:
        variance.mul_(slope.square())
    if attention.softcap is not None:
        capping = (model.SOFTCAP_ROUNDINGS * unit) ** 2 + (model.SOFTCAP_STORES * stored) ** 2
        variance.addcmul_(attention.capped, attention.capped, value=capping)
    if attention.alibi is not None:
        _add_distance_variance(variance, attention, contract)
    if attention.bias is not None:
        _add_bias_variance(variance, attention, attention.bias, contract)
    if stored:
        _add_logit_stores(variance, attention, live, stored**2)
    exponent = (model.EXPONENT_ROUNDINGS * unit) ** 2
    blocks = math.ceil(live.key_length / contract.key_block)
    rescaling = blocks * ((contract.exp_error + model.RESCALE_ROUNDINGS) * unit) ** 2
    shared = live.largest.square().mul_(exponent).add_(rescaling)
    variance.addcmul_(attention.logits, attention.logits, value=exponent).add_(shared)
    if fills(attention.semantics):
        variance = _filled(variance, attention, live, exponent, rescaling)
    return live.only(variance), slope


def _score_variance(
    attention: golden.Attention, live: LiveKeys, contract: Contract, carried: Carried
) -> Tensor:
    """Return the variance of scores: rounded operands, a random walk of partial sums, roundings."""
    query_variance, key_variance = carried.query, carried.key
    size, unit = attention.query.shape[-1], contract.accumulator_roundoff
    square = attention.scale**2
    terms = 2.0 * contract.operand_roundoff**2 + (model.WALK * size + model.PRODUCTS) * unit**2
    scaling = contract.pre_scaling_roundings * contract.unit_roundoff**2
    if contract.scales_query_alone:
        of_query = attention.query.square().mul_(scaling)
        query_variance = of_query if query_variance is None else query_variance + of_query
    else:
        terms += scaling
    partners = attention.key.square().mul_(square * terms)
    if key_variance is not None:
        partners.add_(key_variance, alpha=square)
    variance = attention.query.square() @ partners.transpose(-1, -2)
    if query_variance is not None:
        partners = partners_of_query_error(attention, live).square_().mul_(square)
        variance += query_variance @ partners.transpose(-1, -2)
    tempered = is_tempered(attention)  # one more product, and one more store
    result = (model.DRIFT * size + model.SCORE_ROUNDINGS + tempered) * unit**2
    result += (model.SCORE_STORES + tempered) * contract.score_roundoff**2
    return variance.addcmul_(attention.scores, attention.scores, value=result)


def _slope_within_reach(
    attention: golden.Attention, variance: Tensor, deviations: float
) -> Tensor | None:
    """Return the largest slope of ``cap tanh(s / cap)`` within reach of a score's error.

    For a cap that includes the bias the slope counts as 1: its slope is applied elsewhere.
    """
    if attention.softcap is None or attention.semantics.caps("bias"):
        return None
    reach = variance.sqrt().mul_(-deviations).add_(attention.scores.abs()).clamp_min_(0.0)
    nearest = reach.div_(attention.softcap).clamp_max_(model.LARGEST_GROWTH)
    return nearest.cosh_().square_().reciprocal_()


def _add_bias_variance(
    variance: Tensor, attention: golden.Attention, bias: Tensor, contract: Contract
) -> None:
    """Add the sum and the conversion of the bias, and a store of the logits."""
    rounding = (model.BIAS_ROUNDINGS * contract.accumulator_roundoff) ** 2
    before = attention.semantics.bias_order == "before-scale"
    factor = attention.scale if before else 1.0
    variance.addcmul_(attention.modified, attention.modified, value=rounding)
    if attention.alibi is not None:
        variance.add_(attention.alibi.square(), alpha=rounding)
    variance.add_(finite_size(bias).square_().mul_(rounding * factor**2))


def _add_distance_variance(
    variance: Tensor, attention: golden.Attention, contract: Contract
) -> None:
    """Add the sum with a bias by distance; errors of this bias itself are not random."""
    rounding = (model.BIAS_ROUNDINGS * contract.accumulator_roundoff) ** 2
    variance.addcmul_(attention.modified, attention.modified, value=rounding)
    variance.add_(distance_size(attention).square_(), alpha=rounding)


def _add_logit_stores(
    variance: Tensor, attention: golden.Attention, live: LiveKeys, square: float
) -> None:
    """Add the stores of logits: one for each bias, and one more beside a sink."""
    biases = (attention.alibi is not None) + (attention.bias is not None)
    if biases:
        variance.addcmul_(attention.logits, attention.logits, value=biases * square)
    if has_sink(attention):
        distance = (attention.logits - live.largest).nan_to_num_(neginf=0.0)
        variance.addcmul_(distance, distance, value=model.SINK_STORES * square)


def _filled(
    variance: Tensor,
    attention: golden.Attention,
    live: LiveKeys,
    exponent: float,
    rescaling: float,
) -> Tensor:
    """Replace the variance of filled logits: exact but for their distance to the maximum."""
    distance = (attention.logits - live.largest).square_().mul_(exponent).add_(rescaling)
    return torch.where(~attention.allowed & torch.isfinite(attention.logits), distance, variance)
