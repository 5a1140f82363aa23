"""Variances of the gradients of attention, for independent inputs and output gradients.

The errors of dS and P are propagated to any product with them: ``dS y`` over the keys, ``dS^T z``
over the queries, ``P x`` and ``P^T z``. An error common to a whole row (of D, of the row's sum, of
a query) therefore meets the same sum as in the gradient, be that of a head or, with ``y = K W``, of
the layer's input. Over the queries errors add in quadrature: the output gradient of each is
independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .backward_pass import BackwardPass
from .contract import Contract
from .spread import Carried
from .statistical_pairs import (
    PairVariances,
    coherent_rows,
    independent_channels,
    independent_columns,
    pair_variances,
    walk,
    with_operand_roundings,
)
from .storing import backward_contract


@dataclass(frozen=True, kw_only=True, eq=False)
class Propagation:
    """Golden gradients, the variances of their pairs, and the variances operands carry.

    ``contract`` is without the roundings of operands: ``incoming`` holds them. ``pre_scaled`` is
    the rounding of a gradient by a scaled query or key, before the scale is applied to it.
    """

    gradients: BackwardPass
    contract: Contract
    incoming: Carried
    pairs: PairVariances
    pre_scaled: float

    def rows(self, tokens: Tensor, variance: Tensor | None = None) -> Tensor:
        """The variance of ``dS y`` for ``tokens`` y ``[B, H, Lk, E]`` with a variance: [.., Lq, E].

        The gradient is by the scaled score: without the scale.
        """
        own, pairs = self.gradients, self.pairs
        by_row, by_sum = own.weights * own.slope, own.score_gradient
        mean, result = by_row @ tokens, own.score_gradient @ tokens
        shared, common = self._shared()
        direct = self._direct(own.slope)
        total = (direct + self._through_largest(own.slope, direct)) @ tokens.square()
        total += (pairs.row_sum + shared) * mean.square() + (
            pairs.common + common
        ) * result.square()
        terms = (self._own(own.slope), by_sum, own.weights * own.slope)
        total += independent_columns(self._by_key(), terms, tokens, (mean, result))
        zero = torch.zeros_like(by_row)
        around = (by_row, own.weights, zero)
        total += independent_columns(self._by_value(), around, tokens, (mean, result))
        total += self._coherent(tokens, mean, result)
        total += walk(
            own.score_gradient.square() @ tokens.square(),
            result,
            own.live.key_length,
            self.contract.accumulator_roundoff,
        )
        return total if variance is None else total + own.score_gradient.square() @ variance

    def pair(self, slope: Tensor) -> Tensor:
        """The variance of ``dL`` times a slope, for each pair: ``[B, H, Lq, Lk]``."""
        own, pairs = self.gradients, self.pairs
        by_row, by_sum = own.weights * slope, own.score_gradient
        result = own.logit_gradient * slope
        shared, common = self._shared()
        total = self._direct(slope)
        total += self._through_largest(slope, total)
        total += by_row.square() * (pairs.row_sum + shared)
        total += result.square() * (pairs.common + common)
        total += self._pair_by_key(slope)
        total += self._pair_by_value(by_row)
        if self.incoming.query is not None:
            key = own.attention.key
            rows = (by_sum @ key, (own.weights * own.slope) @ key)
            terms = (self._own(slope), by_row, result)
            scaled = self.incoming.query * own.attention.scale**2
            total += independent_channels(scaled, terms, key, rows) * self._row_growth()
        if self.incoming.output_gradient is not None:
            output, value = own.attention.output, own.attention.value
            zero = torch.zeros_like(by_row)
            total += independent_channels(
                self.incoming.output_gradient, (by_row, by_row, zero), value, (output, output)
            )
        return own.live.only(total)

    def columns(self, tokens: Tensor, variance: Tensor | None = None) -> Tensor:
        """The variance of ``dS^T z`` for ``tokens`` z ``[B, H, Lq, E]``: ``[B, H, Lk, E]``."""
        own = self.gradients
        total = self.pair(own.slope).mT @ tokens.square()
        squares = own.score_gradient.square().mT
        result = own.score_gradient.mT @ tokens
        unit = self.contract.accumulator_roundoff
        total += walk(squares @ tokens.square(), result, tokens.shape[-2], unit)
        return total if variance is None else total + squares @ variance

    def weight_pair(self) -> Tensor:
        """Return the variance of weights meeting the output gradient: ``[B, H, Lq, Lk]``."""
        own, pairs = self.gradients, self.pairs
        weights, slope = own.weights, own.slope
        squares = weights.square()
        moved = squares * pairs.exponent
        total = moved + squares * (moved.sum(dim=-1, keepdim=True) + pairs.common) + pairs.weights
        by_key = self._by_key() * slope.square()
        around = (squares * by_key).sum(dim=-1, keepdim=True)
        total += squares * ((1.0 - 2.0 * weights) * by_key + around).clamp_min_(0.0)
        if self.incoming.query is not None:
            key = own.attention.key
            mean = (weights * slope) @ key
            terms = (weights * slope, weights, torch.zeros_like(weights))
            scaled = self.incoming.query * own.attention.scale**2
            total += independent_channels(scaled, terms, key, (mean, mean)) * self._row_growth()
        return own.live.only(total)

    def weight_columns(self, tokens: Tensor, variance: Tensor | None = None) -> Tensor:
        """The variance of ``P^T z`` for ``tokens`` z ``[B, H, Lq, E]``: ``[B, H, Lk, E]``."""
        weights = self.gradients.attention.weights
        squares = weights.square().mT
        total = (self.weight_pair() + self._equal()).mT @ tokens.square()
        unit = self.contract.accumulator_roundoff
        total += walk(squares @ tokens.square(), weights.mT @ tokens, tokens.shape[-2], unit)
        return total if variance is None else total + squares @ variance

    def weight_rows(self, tokens: Tensor, variance: Tensor | None = None) -> Tensor:
        """The variance of ``P x`` for ``tokens`` x ``[B, H, Lk, E]``: ``[B, H, Lq, E]``."""
        own, pairs = self.gradients, self.pairs
        weights, slope = own.weights, own.slope
        squares = weights.square()
        mean = weights @ tokens
        total = (squares * pairs.exponent + pairs.weights + self._equal()) @ tokens.square()
        common = (squares * pairs.exponent).sum(dim=-1, keepdim=True) + pairs.common
        total += common * mean.square()
        zero = torch.zeros_like(weights)
        terms = (weights * slope, weights * slope, zero)
        total += independent_columns(self._by_key(), terms, tokens, (mean, mean))
        if self.incoming.query is not None:
            key = own.attention.key
            scaled = self.incoming.query * own.attention.scale**2 * self._row_growth()
            moved = (weights * slope) @ key
            products = ((mean, moved),)
            total += coherent_rows(scaled, weights * slope, tokens, key, products)
        unit, length = self.contract.accumulator_roundoff, own.live.key_length
        total += walk(squares @ tokens.square(), mean, length, unit)
        return total if variance is None else total + squares @ variance

    def _own(self, slope: Tensor) -> Tensor:
        """Return a pair's gradient's derivative by its own scaled score, without the row's sums."""
        own = self.gradients
        curvature = own.curvature if slope is own.slope else torch.zeros_like(slope)
        return own.logit_gradient * (slope * own.slope + curvature)

    def _direct(self, slope: Tensor) -> Tensor:
        """Return the variance of each pair's own roundings."""
        own, pairs = self.gradients, self.pairs
        total = (own.logit_gradient * slope).square() * pairs.exponent
        total += own.logit_gradient.square() * pairs.slope * (slope is own.slope)
        return total + (own.weights * slope).square() * pairs.product + pairs.stored

    def _through_largest(self, slope: Tensor, direct: Tensor) -> Tensor:
        """Return the variance by errors of a row's sum, zero when exact, at its largest logit.

        These occur where a softmax is written out as exp(s - max s) without detaching the maximum.
        """
        own, pairs = self.gradients, self.pairs
        unit = self.contract.accumulator_roundoff
        squares = own.logit_gradient.square().sum(dim=-1, keepdim=True)
        total = walk(squares, torch.zeros_like(squares), own.live.key_length, unit)
        total += direct.sum(dim=-1, keepdim=True) + pairs.row_sum
        return pairs.largest * slope.square() * total

    def _shared(self) -> tuple[Tensor, Tensor]:
        """Return the variances of D and of the sum of weights by the exponents' roundings."""
        own, exponent = self.gradients, self.pairs.exponent
        by_sum = (own.logit_gradient.square() * exponent).sum(dim=-1, keepdim=True)
        return by_sum, (own.weights.square() * exponent).sum(dim=-1, keepdim=True)

    def _by_key(self) -> Tensor:
        """Return the variance of each scaled score by its key's errors."""
        own = self.gradients
        if self.incoming.key is None:
            return torch.zeros_like(own.weights)
        scaled = own.attention.query.square() * own.attention.scale**2
        return (scaled @ self.incoming.key.mT) * self.pairs.growth

    def _by_value(self) -> Tensor:
        """Return the variance of dP by its value's errors."""
        if self.incoming.value is None:
            return torch.zeros_like(self.gradients.weights)
        return self.gradients.output_gradient.square() @ self.incoming.value.mT

    def _row_growth(self) -> Tensor:
        return self.pairs.growth.amax(dim=-1, keepdim=True)

    def _coherent(self, tokens: Tensor, mean: Tensor, result: Tensor) -> Tensor:
        """Return the variance by errors of query and output gradient, which move whole rows."""
        own, attention = self.gradients, self.gradients.attention
        total = torch.zeros_like(result)
        if self.incoming.query is not None:
            key = attention.key
            gradient, around = own.score_gradient @ key, (own.weights * own.slope) @ key
            scaled = self.incoming.query * attention.scale**2 * self._row_growth()
            products = ((mean, gradient), (result, around))
            total += coherent_rows(scaled, self._own(own.slope), tokens, key, products)
        if self.incoming.output_gradient is not None:
            around_output = ((mean, attention.output),)
            by_row = own.weights * own.slope
            total += coherent_rows(
                self.incoming.output_gradient, by_row, tokens, attention.value, around_output
            )
        return total

    def _pair_by_key(self, slope: Tensor) -> Tensor:
        own, by_key = self.gradients, self._by_key()
        by_row, result = own.weights * slope, own.logit_gradient * slope
        by_sum, by_weight = own.score_gradient, own.weights * own.slope

        def total(first: Tensor, second: Tensor) -> Tensor:
            return (by_key * first * second).sum(dim=-1, keepdim=True)

        changed = self._own(slope)
        variance = changed.square() * by_key + by_row.square() * total(by_sum, by_sum)
        variance += result.square() * total(by_weight, by_weight)
        variance += 2.0 * by_row * result * total(by_sum, by_weight)
        variance -= 2.0 * changed * by_key * (by_row * by_sum + result * by_weight)
        return variance.clamp_min_(0.0)

    def _pair_by_value(self, by_row: Tensor) -> Tensor:
        weights, by_value = self.gradients.weights, self._by_value()
        around = (weights.square() * by_value).sum(dim=-1, keepdim=True)
        return by_row.square() * ((1.0 - 2.0 * weights) * by_value + around).clamp_min_(0.0)

    def _equal(self) -> Tensor:
        """Return the variance of empty rows' equal weights: division and rounding."""
        empty, weights = self.gradients.live.empty, self.gradients.attention.weights
        if empty is None:
            return torch.zeros_like(weights)
        rounding = self.contract.weight_roundoff**2 + self.pairs.common
        return torch.where(empty, weights.square() * rounding, 0.0)


def propagation(
    gradients: BackwardPass, contract: Contract, incoming: Carried, deviations: float
) -> Propagation:
    """Everything that is needed to propagate errors; ``incoming`` are variances."""
    incoming, exact = with_operand_roundings(gradients, backward_contract(contract), incoming)
    return Propagation(
        gradients=gradients,
        contract=exact,
        incoming=incoming,
        pairs=pair_variances(gradients, exact, incoming, deviations),
        pre_scaled=contract.unit_roundoff * math.sqrt(contract.pre_scaling_roundings),
    )
