"""The bound at points of the semantics whose weights do not sum to one over the keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract, gamma
from .keys import live_keys
from .scores import exponent_error


def is_normalised(semantics: golden.Semantics) -> bool:
    """Whether the weights of a query sum to one, which the sharper bound builds on."""
    return semantics.softmax_axis == "key" and semantics.mask_operation != "multiply-weights"


def unnormalised_bound(
    attention: golden.Attention,
    contract: Contract,
    query_error: Tensor | None,
    key_error: Tensor | None,
    value_error: Tensor | None,
) -> Tensor:
    """Each weight is off by its own error; nothing cancels: ``[B, H, Lq, Dv]``.

    A softmax along another axis divides by a sum whose relative error is at most the largest of its
    terms; without a softmax the weights are the logits.
    """
    live = live_keys(attention)
    error = exponent_error(attention, live, contract, query_error=query_error, key_error=key_error)
    stored = contract.at("rounding")
    contract = contract.at("accumulation")
    weights = attention.weights.abs()
    terms = max(attention.logits.shape)
    blocks = math.ceil(terms / contract.key_block)
    relative = (
        2.0 * gamma(terms + blocks + model.SUM_ROUNDINGS, contract.accumulator_roundoff)
        + model.DIVISION_ROUNDINGS * contract.accumulator_roundoff
        + 2.0 * contract.weight_roundoff
        + contract.operand_error
    )
    if attention.semantics.softmax_axis != "none":
        largest = float(error.amax())
        growth = torch.expm1((error + largest).clamp_max_(model.LARGEST_LOGARITHM))
        # A weight that float64 rounded to zero may come back; none exceeds 1.
        error = live.only((weights + model.LOST_WEIGHT).mul_(growth).clamp_max_(1.0))
    size = attention.value.abs()
    error.add_(weights, alpha=relative).add_(contract.weight_underflow)
    bound = error @ size
    if value_error is not None:
        bound += (error + weights) @ value_error
    flushed = size.sum(dim=-2, keepdim=True).add_(live.key_length)
    bound.add_(flushed, alpha=contract.accumulator_underflow)
    unit = stored.unit_roundoff
    return bound.mul_(1.0 + unit).add_(attention.output.abs(), alpha=unit).add_(stored.underflow)
