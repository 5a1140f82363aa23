"""The error of heads that are normalised: of each channel, and of the factor that all share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract, gamma


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """Heads ``[B, H, L, D]`` on their way through a normalisation, float64.

    ``centred`` are the heads without their mean ("layer"), ``divisor [B, H, L, 1]`` what they are
    divided by and ``result`` what comes out. ``factor [B, H, L, 1]`` bounds the relative error that
    rounding leaves in the divisor and ``shift [B, H, L, 1]`` that of the mean. No result exceeds
    ``largest``, whatever the rounding before the last division.
    """

    centred: Tensor
    divisor: Tensor
    result: Tensor
    factor: Tensor
    shift: Tensor
    largest: float


def norm_of(given: Tensor, semantics: golden.Semantics, contract: Contract) -> Norm:
    """The normalisation of exact heads and its own roundings."""
    size = given.shape[-1]
    is_layer, is_l2 = semantics.qk_norm == "layer", semantics.qk_norm == "l2"
    mean = given.mean(dim=-1, keepdim=True) if is_layer else torch.zeros_like(given[..., :1])
    centred = given - mean
    divisor = golden.norms(centred, semantics)
    unit, stored = contract.accumulator_roundoff, contract.unit_roundoff
    shift = torch.zeros_like(mean)
    # One pass over the channels makes the variance of E[x^2] - E[x]^2, which cancels.
    squares = centred.square()
    if is_layer:
        shift = gamma(size + 1, unit) * given.abs().mean(dim=-1, keepdim=True)
        shift += model.MEAN_STORES * stored * (mean.abs() + shift)
        squares = given.square()
    total = squares.sum(dim=-1, keepdim=True) if is_l2 else squares.mean(dim=-1, keepdim=True)
    cancelled = (total / divisor.square()).clamp_min(1.0)
    count = size if is_l2 else 1
    flushed = count * max(contract.underflow, contract.accumulator_underflow) / divisor.square()
    factor = 0.5 * (gamma(size + model.NORM_ROUNDINGS, unit) * cancelled + flushed)
    factor += model.NORM_FACTOR_ROUNDINGS * unit + (model.NORM_STORES - 1) * stored
    return Norm(
        centred=centred,
        divisor=divisor,
        result=centred / divisor,
        factor=factor,
        shift=shift,
        largest=1.0 if is_l2 else size**0.5,
    )


def normalised_error(
    given: Tensor, error: Tensor | None, semantics: golden.Semantics, contract: Contract
) -> Tensor:
    """How far normalised heads may be off, given the errors of ``given [B, H, L, D]``.

    By the triangle inequality the divisor moves by no more than the norm (for "l2"), or the root
    mean square, of the errors.
    """
    norm = norm_of(given, semantics, contract)
    incoming = torch.zeros_like(given) if error is None else error
    if semantics.qk_norm == "layer":
        incoming = incoming + incoming.mean(dim=-1, keepdim=True) + norm.shift
        incoming = incoming + (contract.unit_roundoff + contract.accumulator_roundoff) * (
            norm.centred.abs() + incoming
        )
    moved = torch.linalg.vector_norm(incoming, dim=-1, keepdim=True) / norm.largest
    left = (1.0 - moved / norm.divisor) * (1.0 - norm.factor)
    known = left > 0.0
    grown = torch.where(known, left, 1.0).reciprocal()
    size = norm.result.abs()
    first = incoming / norm.divisor * grown + size * (grown - 1.0)
    most = norm.largest + size
    found = torch.where(known, torch.minimum(first, most), most)
    last = contract.unit_roundoff + contract.accumulator_roundoff
    return found * (1.0 + last) + last * size + contract.underflow


def divisor_drift(given: Tensor, error: Tensor | None, semantics: golden.Semantics) -> Tensor:
    """How much smaller the divisor may be for heads that err: exact over least, minus 1.

    It is 0 for exact heads, ``[B, H, L, 1]`` like the divisor, and not finite where a head may
    vanish and no epsilon holds its divisor up. Taking the mean off makes no error larger.
    """
    centred, largest = given, given.shape[-1] ** 0.5
    floor = semantics.qk_norm_epsilon**0.5
    if semantics.qk_norm == "layer":
        centred = given - given.mean(dim=-1, keepdim=True)
    elif semantics.qk_norm == "l2":
        largest, floor = 1.0, semantics.qk_norm_epsilon
    divisor = golden.norms(centred, semantics)
    if error is None:
        return torch.zeros_like(divisor)
    moved = torch.linalg.vector_norm(error, dim=-1, keepdim=True) / largest
    left: Tensor = (divisor - moved).clamp_min(floor)
    return divisor / left - 1.0


def normalised_variance(
    given: Tensor, variance: Tensor | None, semantics: golden.Semantics, contract: Contract
) -> tuple[Tensor, Tensor]:
    """The variance of normalised heads, and what of their error is no random number.

    The second are errors of the mean, ``[B, H, L, D]``: they move all channels of a head at once.
    Those of the factor are not in it: they scale all scores of a head.
    """
    norm = norm_of(given, semantics, contract)
    size = norm.result
    own = (contract.unit_roundoff**2 + contract.accumulator_roundoff**2) * size.square()
    if semantics.qk_norm == "layer":
        own = 2.0 * own
    if variance is not None:
        incoming = variance / norm.divisor.square()
        if semantics.qk_norm == "layer":
            incoming = incoming + incoming.mean(dim=-1, keepdim=True)
        # The factor's part of any product with them, by Cauchy and Schwarz.
        shared = (size.square() * incoming).sum(dim=-1, keepdim=True) / norm.largest**2
        own = own + incoming + shared
    return own, (norm.shift / norm.divisor).expand(size.shape)
