"""What all scores of a query have in common: the error of the query itself, and of the scale."""

from __future__ import annotations

import torch
from torch import Tensor

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
) -> Tensor | None:
    """The variance ``[B, H, Lq, Dv]`` that errors of query channels give to the output.

    An error of channel c moves every score of the row at once, ``d s_j = a k_jc``, and with them
    the output by ``a sum_j p_j k_jc (v_j - o)``: the covariance of keys and values under the
    weights, not a sum of independent errors. None when the query is exact.
    """
    rounding = (
        contract.pre_scaling_roundings * contract.unit_roundoff**2 + contract.operand_roundoff**2
    )
    if rounding == 0.0 and query_variance is None:
        return None
    variance = attention.query.square().mul_(rounding)
    if query_variance is not None:
        variance += query_variance
    key = partners_of_query_error(attention, live).mul_(attention.scale)
    weights = attention.weights if slope is None else attention.weights * slope
    centre = live.mean(attention.value)
    value, output = live.only_seen(attention.value - centre), attention.output - centre
    step = _rows_at_once(key)
    pieces = [
        _squared_covariance(*piece, key, value)
        for piece in zip(
            weights.split(step, -2), variance.split(step, -2), output.split(step, -2), strict=True
        )
    ]
    return torch.cat(pieces, dim=-2)


def _rows_at_once(key: Tensor) -> int:
    return max(1, model.COHERENT_CHUNK // max(1, key.numel()))


def _squared_covariance(
    weights: Tensor, variance: Tensor, output: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """``sum_c V_ic (sum_j w_ij k_jc (v_jd - o_id))^2`` for rows i: one product for each head.

    Weights ``[B, H, R, Lk]``, variance ``[B, H, R, D]``, output ``[B, H, R, Dv]``, key and value of
    the same heads; returns ``[B, H, R, Dv]``.
    """
    weighted = weights.transpose(-1, -2).unsqueeze(-1) * key.unsqueeze(-2)  # [B, H, Lk, R, D]
    product = value.transpose(-1, -2) @ weighted.flatten(-2)
    covariance = product.unflatten(-1, weighted.shape[-2:])  # [B, H, Dv, R, D]
    mean = (weights @ key).unsqueeze(-3)
    covariance -= output.transpose(-1, -2).unsqueeze(-1) * mean
    squared = covariance.square_().mul_(variance.unsqueeze(-3))
    return squared.sum(dim=-1).transpose(-1, -2)


def scale_slope(attention: golden.Attention, value: Tensor, output: Tensor) -> Tensor:
    """The derivative of the output by the logarithm of the logit scale: ``sum p s (v - o)``.

    ``value`` and ``output`` may both be taken from any centre. A softcap damps each score's share
    by ``1 - tanh^2``; a bias is not scaled.
    """
    shares = attention.weights * attention.scores
    if attention.softcap is not None and attention.semantics.softcap_order == "before-mask":
        shares.mul_(1.0 - (attention.capped / attention.softcap).square_())
    return (shares @ value).sub_(shares.sum(dim=-1, keepdim=True) * output)
