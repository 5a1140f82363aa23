"""A user's function of scores: the error of its results, and of its slope."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from . import model
from .contract import Contract


def modified_error(error: Tensor, attention: golden.Attention, contract: Contract) -> Tensor:
    """Return the error of scores ``[B, H, Lq, Lk]`` after the function, its roundings included.

    The function is evaluated within the error of each score, assumed steepest there.
    """
    length = attention.given_key.shape[-2]  # behind the keys a sink, which no function gets
    capped, exact = attention.capped[..., :length], attention.modified[..., :length]
    score_error, moved = error[..., :length], torch.zeros_like(exact)
    for step in model.MODIFICATION_STEPS:
        other = golden.modify(capped + step * score_error, attention.semantics)
        moved = torch.maximum(moved, (other - exact).abs().nan_to_num_(nan=0.0))
    size = capped.abs() + exact.abs().masked_fill(torch.isinf(exact), 0.0)
    return torch.cat([moved + function_unit(contract) * size, error[..., length:]], dim=-1)


def function_unit(contract: Contract) -> float:
    """The roundings within a user's function, as one relative error."""
    return (
        model.MODIFICATION_ROUNDINGS * contract.accumulator_roundoff
        + model.MODIFICATION_STORES * contract.score_roundoff
    )


def function_slope(attention: golden.Attention) -> Tensor:
    """Return the derivative of each modified score by its capped score: ``[B, H, Lq, Lk]``.

    float64. Zero where the function has no gradient, for pairs without effect, and for a sink
    behind the keys. NaN or infinite where the function is; NaN everywhere if torch cannot tell.
    """
    slope = golden.slope_of_function(_of_keys(attention.capped, attention), attention.semantics)
    return _but_for_sinks(slope, attention)


def function_slope_error(
    attention: golden.Attention, error: Tensor, slope: Tensor, contract: Contract
) -> Tensor:
    """Return the error of ``slope``, of :func:`function_slope`, for scores off by ``error``.

    The slope is evaluated within the score's error, the function's own roundings included, and on
    both sides of it. Roundings are added: relative to the slope, and to its cancelling parts.
    """
    contract, semantics = contract.at("score"), attention.semantics
    scores, slope = _of_keys(attention.capped, attention), _of_keys(slope, attention)
    modified = _of_keys(attention.modified, attention)
    own = function_unit(contract)
    size = scores.abs() + modified.abs().masked_fill(torch.isinf(modified), 0.0)
    reach = torch.maximum(_of_keys(error, attention) + own * size, _spacing(scores))
    moved = torch.zeros_like(slope)
    for step in model.MODIFICATION_STEPS:
        change = (golden.slope_of_function(scores + step * reach, semantics) - slope).abs()
        moved = torch.maximum(moved, change.nan_to_num(nan=math.inf))
    cancelled = model.SLOPE_SQUARES * _steepest_on_the_way(scores, slope, semantics)
    return _but_for_sinks(moved + own * (slope.abs() + cancelled), attention)


def _steepest_on_the_way(scores: Tensor, slope: Tensor, semantics: golden.Semantics) -> Tensor:
    """Return the largest slope between zero and each score, at least 1: the size of partial sums.

    The 1 of 1 - tanh(s)^2 is the slope at zero.
    """
    steepest = slope.abs().clamp_min(1.0)
    for share in model.SLOPE_WAY:
        passed = golden.slope_of_function(share * scores, semantics).abs()
        steepest = torch.maximum(steepest, passed.nan_to_num(nan=0.0, posinf=0.0))
    return steepest


def _spacing(scores: Tensor) -> Tensor:
    return torch.nextafter(scores.abs(), torch.full_like(scores, math.inf)) - scores.abs()


def _of_keys(pairs: Tensor, attention: golden.Attention) -> Tensor:
    """Return the pairs without the last key, a sink, which a user's function does not get."""
    return pairs[..., : attention.given_key.shape[-2]]


def _but_for_sinks(pairs: Tensor, attention: golden.Attention) -> Tensor:
    """Zero sinks, and logits independent of their score: hidden, or replaced."""
    logits = attention.logits
    pairs = pad(pairs, (0, logits.shape[-1] - pairs.shape[-1]))
    passed = torch.isfinite(logits)
    if attention.semantics.mask_operation in ("replace", "multiply-logits"):
        passed = passed & attention.allowed
    return pairs.masked_fill(~passed, 0.0)
