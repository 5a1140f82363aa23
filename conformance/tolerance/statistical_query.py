"""What all scores of a query have in common: the error of the query itself, and of the scale."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import threshold

from conformance._golden import golden

from . import model
from .contract import Contract
from .keys import LiveKeys
from .scores import partners_of_query_error


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
    """``sum_c V_ic (sum_j w_ij k_jc (v_jd - o_id))^2`` for all rows i: ``[B, H, R, Dv]``.

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
    if attention.softcap is not None and attention.semantics.softcap_order == "before-mask":
        shares.mul_(1.0 - (attention.capped / attention.softcap).square_())
    return (shares @ value).sub_(shares.sum(dim=-1, keepdim=True) * output)
