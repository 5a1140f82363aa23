"""What query and key carry when they meet, after they are normalised and turned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from .contract import Contract
from .normalised import norm_of, normalised_error, normalised_variance
from .rotated import rotated_error, rotated_variance
from .spread import Variances


def is_prepared(semantics: golden.Semantics) -> bool:
    """Whether query and key meet as something else than they are given."""
    return semantics.qk_norm != "none" or semantics.rotary != "none"


def prepared_errors(
    attention: golden.Attention,
    contract: Contract,
    query_error: Tensor | None,
    key_error: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The errors of ``attention.query`` and ``.key``, given those of what they are made of."""
    if not is_prepared(attention.semantics):
        return query_error, key_error
    return (
        _error(attention, attention.given_query, query_error, attention.positions, contract),
        _error(attention, attention.given_key, key_error, _keys(attention), contract),
    )


def _error(
    attention: golden.Attention,
    given: Tensor,
    error: Tensor | None,
    positions: Tensor,
    contract: Contract,
) -> Tensor | None:
    semantics = attention.semantics
    heads = golden.normalise_heads(given, semantics)
    if semantics.qk_norm != "none":
        error = normalised_error(given, error, semantics, contract)
    if semantics.rotary != "none":
        error = rotated_error(heads, error, positions, semantics, contract)
    return error


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Variances of query and key as they meet, and what of their errors adds up in full.

    ``query [B, H, Lq, D]`` and ``key [B, H, Lk, D]`` are errors of tables and means, None where
    there are none; ``query_factor`` and ``key_factor``, ``[B, H, L, 1]``, relative errors of whole
    heads.
    """

    carried: Variances
    query: Tensor | None = None
    key: Tensor | None = None
    query_factor: Tensor | None = None
    key_factor: Tensor | None = None

    def score_error(self, attention: golden.Attention) -> Tensor | None:
        """What they move each score by, ``[B, H, Lq, Lk]``; None where nothing is prepared."""
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
    heads = (attention.given_query, attention.given_key)
    return sum(
        float(norm_of(given, attention.semantics, contract).factor.amax())
        for given in heads
        if given.numel()
    )


def prepared_variances(
    attention: golden.Attention, contract: Contract, carried: Variances
) -> Prepared:
    """The statistical counterpart of :func:`prepared_errors`."""
    if not is_prepared(attention.semantics):
        return Prepared(carried=carried)
    query, shared_query, query_factor = _variance(
        attention, attention.given_query, carried.query, attention.positions, contract
    )
    key, shared_key, key_factor = _variance(
        attention, attention.given_key, carried.key, _keys(attention), contract
    )
    return Prepared(
        carried=Variances(query=query, key=key, value=carried.value),
        query=shared_query,
        key=shared_key,
        query_factor=query_factor,
        key_factor=key_factor,
    )


def _variance(
    attention: golden.Attention,
    given: Tensor,
    variance: Tensor | None,
    positions: Tensor,
    contract: Contract,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    semantics = attention.semantics
    heads, shared, factor = golden.normalise_heads(given, semantics), torch.zeros_like(given), None
    if semantics.qk_norm != "none":
        factor = norm_of(given, semantics, contract).factor
        variance, shared = normalised_variance(given, variance, semantics, contract)
    if semantics.rotary != "none":
        variance, shared = rotated_variance(heads, variance, shared, positions, semantics, contract)
    return variance, shared, factor


def _keys(attention: golden.Attention) -> Tensor:
    return torch.arange(attention.given_key.shape[-2])
