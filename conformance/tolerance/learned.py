"""Learned factors of prepared heads, and the errors of heads behind them.

A norm weight multiplies normalised channels, a temperature all queries of a head. An implementation
may multiply the scores by a temperature instead, which is one more rounding of each score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conformance._golden import golden

from .contract import Contract

QUERY, KEY = "query", "key"


def weight_of(attention: golden.Attention, role: str) -> Tensor | None:
    """The norm weight of query or key for each query head: ``[1 or H, D]``, or None."""
    weight = attention.learned.get(f"{role}_norm_weight")
    if weight is None:
        return None
    rows: Tensor = weight.unflatten(-1, (-1, attention.given_query.shape[-1]))
    heads = attention.given_query.shape[1]
    if len(rows) in (1, heads):
        return rows
    repeated = golden.repeat_heads(rows[None, :, None], heads, attention.semantics)
    return repeated[0, :, 0]


def factors_of(attention: golden.Attention, role: str) -> list[Tensor]:
    """The learned factors of query or key, in their order, each ``[1 or H, 1, 1 or D]``."""
    weight = weight_of(attention, role)
    factors = [] if weight is None else [weight[:, None]]
    temperature = attention.learned.get("temperature")
    if role == QUERY and temperature is not None:
        factors.append(temperature[:, None, None])
    return factors


def has_factors(attention: golden.Attention) -> bool:
    """Whether query or key has learned factors."""
    return any(not each.startswith(("alibi", "bias", "relative")) for each in attention.learned)


def is_tempered(attention: golden.Attention) -> bool:
    """Whether scores may be multiplied by a temperature, as the run of an evaluation says."""
    return attention.run.given.get("temperature") is not None


def multiplied(heads: Tensor, factors: list[Tensor]) -> Tensor:
    """Heads ``[B, H, L, D]`` times learned factors."""
    for factor in factors:
        heads = heads * factor
    return heads


def multiplied_error(
    heads: Tensor, error: Tensor | None, factors: list[Tensor], contract: Contract
) -> Tensor | None:
    """How far heads times learned factors may be off, each product stored."""
    once = contract.unit_roundoff + contract.accumulator_roundoff
    for factor in factors:
        heads, size = heads * factor, factor.abs()
        carried = torch.zeros_like(heads) if error is None else error * size
        error = carried + once * (heads.abs() + carried)
        error = error + contract.underflow + contract.accumulator_underflow
    return error


def multiplied_variance(
    heads: Tensor,
    variance: Tensor | None,
    shared: Tensor,
    factors: list[Tensor],
    contract: Contract,
) -> tuple[Tensor | None, Tensor]:
    """The variance of heads times learned factors, and the non-random part of their error."""
    once = contract.unit_roundoff**2 + contract.accumulator_roundoff**2
    for factor in factors:
        heads, shared = heads * factor, shared * factor.abs()
        own = once * heads.square()
        variance = own if variance is None else own + variance * factor.square()
    return variance, shared
