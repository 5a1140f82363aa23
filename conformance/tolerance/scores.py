"""The error of the exponent in each softmax weight, worst case."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract, gamma
from .distances import distance_error, distance_size
from .keys import LiveKeys
from .modified import modified_error
from .sinks import has_sink


def exponent_error(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    *,
    query_error: Tensor | None = None,
    key_error: Tensor | None = None,
) -> Tensor:
    """How far each logit may be from the golden one, up to what a whole row has in common.

    The error of exp itself and of the rescaling of an online softmax count as an error of the
    exponent. Returns float64 ``[B, H, Lq, Lk]``, zero where a key is not live.
    """
    scores, exponentials = contract.at("score"), contract.at("exp")
    error = capped_error(attention, live, contract, query_error, key_error)
    if attention.semantics.score_mod is not None:
        error = modified_error(error, attention, scores)
    if attention.alibi is not None:
        error += distance_error(attention, distance_size(attention), scores)
    if attention.bias is not None:
        _add_bias_error(error, attention, attention.bias, scores)
    if scores.score_roundoff:
        _add_logit_stores(error, attention, live, scores.score_roundoff)
    unit = exponentials.accumulator_roundoff
    shared = live.largest.abs().mul_(model.EXPONENT_ROUNDINGS * unit)
    error.add_(attention.logits.abs(), alpha=model.EXPONENT_ROUNDINGS * unit)
    error.add_(shared)
    if fills(attention.semantics):
        error = _filled_error(error, attention, live, unit)
    return live.only(error.add_(exponential_error(live.key_length, exponentials)))


def capped_error(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    query_error: Tensor | None,
    key_error: Tensor | None,
) -> Tensor:
    """How far each capped score may be from the golden one: what a user's function is given."""
    contract = contract.at("score")
    error = _score_error(attention, live, contract, query_error, key_error)
    if contract.score_roundoff:
        _add_rounding(error, attention.scores, contract.score_roundoff, times=model.SCORE_STORES)
    if attention.softcap is not None:
        error = _capped_error(error, attention, attention.softcap, contract)
    return error


def fills(semantics: golden.Semantics) -> bool:
    """Whether an ignored key keeps a finite logit, the same for all."""
    return semantics.mask_operation == "replace" and math.isfinite(semantics.mask_fill)


def _filled_error(
    error: Tensor, attention: golden.Attention, live: LiveKeys, unit: float
) -> Tensor:
    """A logit that a finite fill replaced is exact: only its distance to the maximum is rounded."""
    distance = (attention.logits - live.largest).abs()
    filled = ~attention.allowed & torch.isfinite(attention.logits)
    return torch.where(filled, model.EXPONENT_ROUNDINGS * unit * distance, error)


def exponential_error(key_length: int, contract: Contract) -> float:
    """The error of exp and of the rescaling once a block, as an error of the exponent."""
    unit = contract.accumulator_roundoff
    blocks = math.ceil(key_length / contract.key_block)
    rescaling = gamma(blocks, (contract.exp_error + model.RESCALE_ROUNDINGS) * unit)
    return contract.exp_error * unit + rescaling


def _score_error(
    attention: golden.Attention,
    live: LiveKeys,
    contract: Contract,
    query_error: Tensor | None,
    key_error: Tensor | None,
) -> Tensor:
    scale, size = abs(attention.scale), attention.query.shape[-1]
    relative = gamma(size + model.SCORE_ROUNDINGS, contract.accumulator_roundoff)
    relative += contract.operand_error
    query, key = attention.query.abs(), attention.key.abs()
    if query_error is not None:
        query += query_error
    scaling = (
        contract.pre_scaling_roundings * contract.unit_roundoff * (1.0 + contract.unit_roundoff)
    )
    if contract.scales_query_alone:
        of_query = query * scaling
        query_error = of_query if query_error is None else query_error + of_query
    else:
        relative += scaling
    if key_error is None:
        key *= scale * relative
    else:
        key = (key + key_error).mul_(relative).add_(key_error).mul_(scale)
    error = query @ key.transpose(-1, -2)
    if query_error is not None:
        partners = partners_of_query_error(attention, live).abs_().mul_(scale)
        error += query_error @ partners.transpose(-1, -2)
    underflow = contract.accumulator_underflow * (size + 2) * (1.0 + scale)
    return error.add_(underflow)


def partners_of_query_error(attention: golden.Attention, live: LiveKeys) -> Tensor:
    """What an error of the query is multiplied by: ``[B, H, Lk, D]``.

    Softmax over the keys does not see what a row has in common, so that any one vector may be taken
    off all keys; the mean makes them small. A softcap does see it.
    """
    semantics = attention.semantics
    bent = attention.softcap is not None or semantics.score_mod is not None
    if bent or semantics.softmax_axis != "key":
        return attention.key.clone()
    return attention.key - live.mean(attention.key)


def _capped_error(
    error: Tensor, attention: golden.Attention, softcap: float, contract: Contract
) -> Tensor:
    """The error behind ``cap * tanh(score / cap)``: the largest slope within reach, and tanh's own.

    A cap that comes after the mask and the bias has its slope elsewhere: then it counts as 1.
    """
    if attention.semantics.softcap_order == "before-mask":
        nearest = (attention.scores.abs() - error).clamp_min_(0.0).div_(softcap)
        error = error / torch.cosh(nearest.clamp_max_(model.LARGEST_GROWTH)).square_()
    own = (
        model.SOFTCAP_ROUNDINGS * contract.accumulator_roundoff
        + model.SOFTCAP_STORES * contract.score_roundoff
    )
    return error.add_(attention.capped.abs(), alpha=own)


def _add_logit_stores(
    error: Tensor, attention: golden.Attention, live: LiveKeys, roundoff: float
) -> None:
    """Logits that are stored: once for each of the biases, and once more beside a sink."""
    biases = (attention.alibi is not None) + (attention.bias is not None)
    if biases:
        _add_rounding(error, attention.logits, roundoff, times=biases)
    if has_sink(attention):
        distance = (attention.logits - live.largest).nan_to_num_(neginf=0.0)
        _add_rounding(error, distance, roundoff, times=model.SINK_STORES)


def finite_size(bias: Tensor) -> Tensor:
    """Magnitudes of what is added up; minus infinity is exact, and live where a cap follows it."""
    return bias.abs().masked_fill_(torch.isinf(bias), 0.0)


def _add_bias_error(
    error: Tensor, attention: golden.Attention, bias: Tensor, contract: Contract
) -> None:
    rounding = model.BIAS_ROUNDINGS * contract.accumulator_roundoff
    before = attention.semantics.bias_order == "before-scale"
    error.add_(finite_size(attention.modified), alpha=rounding)
    if attention.alibi is not None:
        error.add_(attention.alibi.abs(), alpha=rounding)
    factor = rounding * (abs(attention.scale) if before else 1.0)
    error.add_(finite_size(bias), alpha=factor)


def _add_rounding(error: Tensor, exact: Tensor, roundoff: float, *, times: int) -> None:
    """Round what is stored: relative to the exact number and the error that it has already."""
    error.mul_(1.0 + times * roundoff).add_(exact.abs(), alpha=times * roundoff)
