"""The errors of query and key after they are normalised, multiplied and rotated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract, gamma
from .learned import (
    KEY,
    QUERY,
    factors_of,
    has_factors,
    multiplied,
    multiplied_error,
    multiplied_variance,
)
from .positions import rotated_error, rotated_variance, rotation_of
from .spread import Carried


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """Heads ``[B, H, L, D]`` on their way through a normalisation, float64, or joined heads.

    ``centred`` are the heads minus their mean ("layer"), ``divisor [B, H, L, 1]`` their divisors
    and ``result`` the normalised heads. ``factor [B, H, L, 1]`` bounds the relative rounding error
    of the divisor and ``shift [B, H, L, 1]`` that of the mean. No result exceeds ``largest``,
    whatever the rounding before the last division.
    """

    centred: Tensor
    divisor: Tensor
    result: Tensor
    factor: Tensor
    shift: Tensor
    largest: float


def norm_of(heads: Tensor, semantics: golden.Semantics, contract: Contract) -> Norm:
    """The normalisation of exact heads, joined where one norm is over all, and its roundings."""
    size = heads.shape[-1]
    is_layer, is_l2 = semantics.qk_norm == "layer", semantics.qk_norm == "l2"
    mean = heads.mean(dim=-1, keepdim=True) if is_layer else torch.zeros_like(heads[..., :1])
    centred = heads - mean
    divisor = golden.norms(centred, semantics)
    unit, stored = contract.accumulator_roundoff, contract.unit_roundoff
    shift = torch.zeros_like(mean)
    # One pass over the channels makes the variance of E[x^2] - E[x]^2, which cancels.
    squares = centred.square()
    if is_layer:
        shift = gamma(size + 1, unit) * heads.abs().mean(dim=-1, keepdim=True)
        shift += model.MEAN_STORES * stored * (mean.abs() + shift)
        squares = heads.square()
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
    heads: Tensor, error: Tensor | None, semantics: golden.Semantics, contract: Contract
) -> Tensor:
    """How far normalised heads may be off, given the errors of ``heads [B, H, L, D]``.

    By the triangle inequality the divisor moves by no more than the norm (for "l2"), or the root
    mean square, of the errors.
    """
    given, heads = heads, golden.joined_heads(heads, semantics)
    norm = norm_of(heads, semantics, contract)
    incoming = torch.zeros_like(heads)
    if error is not None:
        incoming = golden.joined_heads(error, semantics)
    if semantics.qk_norm == "layer":
        incoming = incoming + incoming.mean(dim=-1, keepdim=True) + norm.shift
        incoming = incoming + (contract.unit_roundoff + contract.accumulator_roundoff) * (
            norm.centred.abs() + incoming
        )
    moved = torch.linalg.vector_norm(incoming, dim=-1, keepdim=True) / norm.largest
    left = (1.0 - moved / norm.divisor) * (1.0 - norm.factor)
    positive = left > 0.0
    grown = torch.where(positive, left, 1.0).reciprocal()
    size = norm.result.abs()
    first = incoming / norm.divisor * grown + size * (grown - 1.0)
    most = norm.largest + size
    total = torch.where(positive, torch.minimum(first, most), most)
    last = contract.unit_roundoff + contract.accumulator_roundoff
    total = total * (1.0 + last) + last * size + contract.underflow
    return golden.parted_heads(total, given, semantics)


def divisor_drift(heads: Tensor, error: Tensor | None, semantics: golden.Semantics) -> Tensor:
    """How much smaller the divisor may be for heads that err: exact over least, minus 1.

    ``heads`` may be joined. It is 0 for exact heads, ``[B, H, L, 1]`` like the divisor, and not
    finite where a head may vanish and no epsilon holds its divisor up. Taking the mean off makes no
    error larger.
    """
    centred, largest = heads, heads.shape[-1] ** 0.5
    floor = semantics.qk_norm_epsilon**0.5
    if semantics.qk_norm == "layer":
        centred = heads - heads.mean(dim=-1, keepdim=True)
    elif semantics.qk_norm == "l2":
        largest, floor = 1.0, semantics.qk_norm_epsilon
    divisor = golden.norms(centred, semantics)
    if error is None:
        return torch.zeros_like(divisor)
    moved = torch.linalg.vector_norm(error, dim=-1, keepdim=True) / largest
    left: Tensor = (divisor - moved).clamp_min(floor)
    return divisor / left - 1.0


def normalised_variance(
    heads: Tensor,
    variance: Tensor | None,
    shared: Tensor,
    semantics: golden.Semantics,
    contract: Contract,
) -> tuple[Tensor, Tensor]:
    """Return the variance of normalised heads, and the non-random part of their error.

    The latter are errors of the mean, ``[B, H, L, D]``, moving all channels of a head at once, and
    earlier errors ``shared``. Errors of the factor are left out: they scale all scores of a head.
    """
    given, heads = heads, golden.joined_heads(heads, semantics)
    norm = norm_of(heads, semantics, contract)
    size = norm.result
    own = (contract.unit_roundoff**2 + contract.accumulator_roundoff**2) * size.square()
    if semantics.qk_norm == "layer":
        own = 2.0 * own
    if variance is not None:
        incoming = golden.joined_heads(variance, semantics) / norm.divisor.square()
        if semantics.qk_norm == "layer":
            incoming = incoming + incoming.mean(dim=-1, keepdim=True)
        # The factor's part of any product with them, by Cauchy and Schwarz.
        factor = (size.square() * incoming).sum(dim=-1, keepdim=True) / norm.largest**2
        own = own + incoming + factor
    shared = golden.joined_heads(shared, semantics)
    if bool(shared.any()):
        if semantics.qk_norm == "layer":
            shared = shared + shared.mean(dim=-1, keepdim=True)
        shared = shared / norm.divisor
        along = (size.abs() * shared).sum(dim=-1, keepdim=True) / norm.largest**2
        shared = shared + size.abs() * along
    shared = shared + norm.shift / norm.divisor
    own, shared = (golden.parted_heads(each, given, semantics) for each in (own, shared))
    return own, shared


def is_prepared_at(semantics: golden.Semantics) -> bool:
    """Whether query and key are normalised or rotated before their product at a point."""
    return semantics.qk_norm != "none" or semantics.rotary != "none"


def is_prepared(attention: golden.Attention) -> bool:
    """Whether query and key are normalised, multiplied or rotated before their product."""
    return is_prepared_at(attention.semantics) or has_factors(attention)


def prepared_errors(attention: golden.Attention, contract: Contract, carried: Carried) -> Carried:
    """Return the errors of ``attention.query`` and ``.key``, after normalisation and rotation.

    ``carried`` are those of ``given_query`` and ``given_key``, the heads before preparation.
    """
    if not is_prepared(attention):
        return carried
    query, key = attention.given_query, attention.given_key
    return replace(
        carried,
        query=prepared_error(
            attention,
            query,
            carried.query,
            attention.query_places,
            factors_of(attention, QUERY),
            contract,
        ),
        key=prepared_error(
            attention,
            key,
            carried.key,
            attention.key_places,
            factors_of(attention, KEY),
            contract,
        ),
    )


def prepared_error(
    attention: golden.Attention,
    heads: Tensor,
    error: Tensor | None,
    positions: Tensor,
    factors: list[Tensor],
    contract: Contract,
) -> Tensor | None:
    """The error of heads that are normalised, multiplied by learned factors and turned."""
    semantics = attention.semantics
    for step in steps(semantics):
        if step == "norm":
            error = normalised_error(heads, error, semantics, contract)
        elif step == "factors":
            error = multiplied_error(heads, error, factors, contract)
        else:
            turn = rotation_of(attention, positions, heads.shape[-1], contract)
            error = rotated_error(heads, error, turn, contract)
        heads = stepped(step, heads, positions, factors, attention)
    return error


def steps(semantics: golden.Semantics) -> tuple[str, ...]:
    """The steps by which heads are prepared, in their order: "norm", "factors" and "rotation".

    Norms behind the rotation have no learned factors.
    """
    named = {"norm": semantics.qk_norm, "factors": "learned", "rotation": semantics.rotary}
    made = tuple(name for name, kind in named.items() if kind != "none")
    return made[::-1] if semantics.normalises_late else made


def stepped(
    step: str,
    heads: Tensor,
    positions: Tensor,
    factors: list[Tensor],
    attention: golden.Attention,
) -> Tensor:
    """Heads behind one of their :func:`steps`."""
    semantics = attention.semantics
    if step == "norm":
        return golden.normalise_heads(heads, semantics)
    if step == "factors":
        return multiplied(heads, factors)
    return golden.rotate_heads(heads, positions, semantics, attention.rotary_tables)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Variances of prepared query and key, and the parts of their errors that add up in full.

    ``query [B, H, Lq, D]`` and ``key [B, H, Lk, D]`` are errors of tables and means, None if there
    are none; ``query_factor`` and ``key_factor``, ``[B, H, L, 1]``, relative errors of whole heads.
    """

    carried: Carried
    query: Tensor | None = None
    key: Tensor | None = None
    query_factor: Tensor | None = None
    key_factor: Tensor | None = None

    def score_error(self, attention: golden.Attention) -> Tensor | None:
        """Return the movement of each score, ``[B, H, Lq, Lk]``; None where nothing is prepared."""
        if self.query is None or self.key is None:
            return None
        query, key = attention.query.abs(), attention.key.abs()
        scale = abs(attention.scale)
        error = scale * (self.query @ key.mT + (query + self.query) @ self.key.mT)
        if self.query_factor is not None and self.key_factor is not None:
            error += (self.query_factor + self.key_factor.mT) * attention.scores.abs()
        return error


def scale_error(attention: golden.Attention, contract: Contract) -> float:
    """The relative error of the logit scale that the factors of normalised heads look like."""
    if attention.semantics.qk_norm == "none":
        return 0.0
    semantics = attention.semantics
    return sum(
        float(norm_of(golden.joined_heads(heads, semantics), semantics, contract).factor.amax())
        for heads in before_norm(attention)
        if heads.numel()
    )


def before_norm(attention: golden.Attention) -> tuple[Tensor, Tensor]:
    """Queries and keys as they are normalised: behind the rotation, if the norm is."""
    heads = (attention.given_query, attention.given_key)
    if not attention.semantics.normalises_late:
        return heads
    places = (attention.query_places, attention.key_places)
    query, key = (
        golden.rotate_heads(one, at, attention.semantics, attention.rotary_tables)
        for one, at in zip(heads, places, strict=True)
    )
    return query, key


def prepared_variances(
    attention: golden.Attention, contract: Contract, carried: Carried
) -> Prepared:
    """The statistical counterpart of :func:`prepared_errors`."""
    if not is_prepared(attention):
        return Prepared(carried=carried)
    query, shared_query, query_factor = _variance(
        attention, QUERY, carried.query, attention.query_places, contract
    )
    key, shared_key, key_factor = _variance(
        attention, KEY, carried.key, attention.key_places, contract
    )
    return Prepared(
        carried=replace(carried, query=query, key=key),
        query=shared_query,
        key=shared_key,
        query_factor=query_factor,
        key_factor=key_factor,
    )


def _variance(
    attention: golden.Attention,
    role: str,
    variance: Tensor | None,
    positions: Tensor,
    contract: Contract,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    semantics, factor = attention.semantics, None
    heads = attention.given_query if role == QUERY else attention.given_key
    shared, factors = torch.zeros_like(heads), factors_of(attention, role)
    for step in steps(semantics):
        if step == "norm":
            factor = norm_of(golden.joined_heads(heads, semantics), semantics, contract).factor
            variance, shared = normalised_variance(heads, variance, shared, semantics, contract)
        elif step == "factors":
            variance, shared = multiplied_variance(heads, variance, shared, factors, contract)
        else:
            turn = rotation_of(attention, positions, heads.shape[-1], contract)
            variance, shared = rotated_variance(heads, variance, shared, turn, contract)
        heads = stepped(step, heads, positions, factors, attention)
    return variance, shared, factor
