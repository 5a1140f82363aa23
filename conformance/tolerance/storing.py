"""How gradients are stored between steps: rounded at the end, block by block, or on the way in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._golden import golden
from . import model
from .backward_pass import BackwardPass
from .contract import Contract
from .gradient import Gradient, GradientStatistics
from .visible_keys import sum_groups


@dataclass(frozen=True, kw_only=True, eq=False)
class UnstoredGradient:
    """A golden gradient, the worst error so far and the variance of independent errors.

    The variance is None where there is no statistical bound. ``underflow`` is an absolute error
    that earlier stores may have made.
    """

    value: Tensor
    worst: Tensor
    variance: Tensor | None = None
    underflow: float = 0.0

    def rounded(self, roundoff: float) -> UnstoredGradient:
        """Add one more rounding in quadrature; the worst case has counted it already."""
        if roundoff == 0.0 or self.variance is None:
            return self
        return replace(self, variance=self.variance + (roundoff * self.value).square())


def grouped_worst(
    value: Tensor,
    error: Tensor,
    num_kv_heads: int,
    semantics: golden.Semantics,
    contract: Contract,
) -> Tensor:
    """The worst error of the sum of a group's heads: each may be stored, and every partial sum."""
    group = value.shape[1] // num_kv_heads
    if group == 1:
        return error
    unit = contract.unit_roundoff
    sizes = sum_groups(value.abs() + error, num_kv_heads, semantics)
    total = sum_groups(error, num_kv_heads, semantics)
    return total + group * (unit * (1.0 + unit) ** group * sizes + contract.underflow)


def stored(
    errors: UnstoredGradient,
    contract: Contract,
    derive: Callable[[], GradientStatistics] | None = None,
) -> Gradient:
    """Return the gradient with its worst error after the last rounding, one uniform error.

    ``derive`` gives its statistics: :func:`spread_of` such errors with a variance.
    """
    worst = errors.worst * (1.0 + contract.unit_roundoff) + _last(errors, contract)
    return Gradient(value=errors.value, worst=contract.sides * worst, derive=derive)


def spread_of(
    errors: UnstoredGradient, contract: Contract, deviations: float
) -> GradientStatistics:
    """The statistics of errors that have a variance, behind the last rounding."""
    if errors.variance is None:
        msg = "there is no variance"
        raise ValueError(msg)
    unit, last = contract.unit_roundoff, _last(errors, contract)
    variance = errors.variance.clamp_min(0.0)
    return GradientStatistics(
        bound=contract.sides * (deviations * variance.sqrt() * (1.0 + unit) + last),
        scale=contract.sides * torch.sqrt(variance + last.square()),
    )


def _last(errors: UnstoredGradient, contract: Contract) -> Tensor:
    """Return the error of the last rounding, with the losses of earlier stores."""
    lost = contract.underflow + errors.underflow
    return contract.unit_roundoff * errors.value.abs() + lost


def query_block_stores(length: int, contract: Contract) -> int:
    """How often gradients of key and value are stored between blocks of that many queries."""
    if contract.unit_roundoff <= contract.accumulator_roundoff:
        return 0  # the accumulator's own sum has counted it
    if contract.score_roundoff:
        return math.ceil(length / model.EAGER_QUERY_BLOCK) - 1
    sizes = [size for least, size in model.GRADIENT_QUERY_BLOCKS if length >= least]
    return math.ceil(length / sizes[-1]) - 1


def key_block_stores(length: int, contract: Contract) -> int:
    """How often the gradient of the query is stored between blocks of that many keys."""
    if contract.unit_roundoff <= contract.accumulator_roundoff:
        return 0
    block = model.EAGER_KEY_BLOCK if contract.score_roundoff else model.GRADIENT_KEY_BLOCK
    return math.ceil(length / block) - 1


def worst_of_stores(sizes: Tensor, stores: int, contract: Contract) -> Tensor | float:
    """Return the error of storing partial sums, each at most the sum of magnitudes."""
    if stores <= 0:
        return 0.0
    unit = contract.unit_roundoff
    return stores * (unit * (1.0 + unit) ** stores * sizes + contract.underflow)


def query_store_variance(gradients: BackwardPass, contract: Contract) -> Tensor | float:
    """The variance of the query's gradient by these stores, per head."""
    stores = key_block_stores(gradients.live.key_length, contract)
    squares = gradients.score_gradient.square() @ gradients.attention.key.square()
    squares = squares * gradients.attention.scale**2
    return _variance(squares, gradients.query, stores, contract)


def key_store_variance(gradients: BackwardPass, contract: Contract) -> Tensor | float:
    """The variance of the key's gradient by these stores, per query head."""
    stores = query_block_stores(gradients.query.shape[-2], contract)
    squares = gradients.score_gradient.square().mT @ gradients.attention.query.square()
    squares = squares * gradients.attention.scale**2
    return _variance(squares, gradients.key, stores, contract)


def value_store_variance(gradients: BackwardPass, contract: Contract) -> Tensor | float:
    """The variance of the value's gradient by these stores, per query head."""
    stores = query_block_stores(gradients.query.shape[-2], contract)
    weights = gradients.attention.weights
    squares = weights.square().mT @ gradients.output_gradient.square()
    return _variance(squares, gradients.value, stores, contract)


def _variance(squares: Tensor, result: Tensor, stores: int, contract: Contract) -> Tensor | float:
    """Return the variance of stored partial sums, a walk drifting to the result: ``model.WALK``."""
    if stores <= 0:
        return 0.0
    partial = model.WALK * squares + model.DRIFT * result.square()
    return stores * (contract.unit_roundoff**2 * partial + contract.underflow**2)


def backward_contract(contract: Contract) -> Contract:
    """The contract with the exponential that recomputes weights."""
    return replace(contract, exp_error=max(contract.exp_error, model.BACKWARD_EXP_ERROR))


def score_gradient_stores(gradients: BackwardPass, contract: Contract) -> int:
    """How often a gradient of a score is rounded to the working dtype."""
    if not contract.score_roundoff:
        return model.SCORE_GRADIENT_STORES
    capped = model.SOFTCAP_STORES if gradients.attention.softcap is not None else 0
    modified = model.MODIFICATION_STORES if gradients.function_slope is not None else 0
    return model.SCORE_GRADIENT_STORES + model.EAGER_SCORE_GRADIENT_STORES + capped + modified
