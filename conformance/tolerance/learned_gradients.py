"""The gradients of learned arguments, as sums of products of gradients and heads or distances."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract, gamma
from .gradient import Gradient
from .storing import UnstoredGradient, query_block_stores, stored, worst_of_stores


def summed(
    terms: Tensor,
    error: Tensor,
    kept: tuple[int, ...],
    contract: Contract,
) -> UnstoredGradient:
    """The sum of terms of a gradient over all axes but some, blocks of which may be stored."""
    over = [axis for axis in range(terms.dim()) if axis not in kept]
    count = max(1, terms.numel() // max(1, _size(terms, kept)))
    sizes = (terms.abs() + error).sum(dim=over)
    relative = gamma(count + model.SUM_ROUNDINGS, contract.accumulator_roundoff)
    # Each term is a product that may be stored, and partial sums of items, heads and blocks are.
    stores = 1 + sum(terms.shape[axis] for axis in over if axis < len("BH"))
    stores += max(query_block_stores(terms.shape[-2], contract), 0)
    worst = error.sum(dim=over) + relative * sizes + worst_of_stores(sizes, stores, contract)
    worst = worst + contract.unit_roundoff * sizes
    worst = worst + (contract.accumulator_underflow + contract.underflow) * (count + 1)
    return UnstoredGradient(value=terms.sum(dim=over), worst=worst)


def _size(terms: Tensor, kept: tuple[int, ...]) -> int:
    size = 1
    for axis in kept:
        size *= terms.shape[axis]
    return size


def weight_gradient(
    attention: golden.Attention,
    role: str,
    behind: tuple[Tensor, Tensor],
    normalised: tuple[Tensor, Tensor],
    num_heads: int,
    contract: Contract,
) -> Gradient:
    """The gradient of a norm weight, with its bound.

    ``behind`` is the gradient of the heads behind the weight and ``normalised`` the heads before
    it, each with its error, by query head; ``num_heads`` is how many heads the weight may have.
    """
    terms, error = product_error(behind, normalised, contract)
    size = attention.learned[f"{role}_norm_weight"].shape[-1]
    if size == terms.shape[-1]:
        return stored(summed(terms, error, (3,), contract), contract)
    heads = torch.arange(terms.shape[1])
    tiled = attention.semantics.group_order == "tile"
    group = terms.shape[1] // num_heads
    owner = heads % num_heads if tiled else heads // group
    parts = [
        summed(terms[:, owner == head], error[:, owner == head], (3,), contract)
        for head in range(num_heads)
    ]
    whole = UnstoredGradient(
        value=torch.cat([part.value for part in parts]),
        worst=torch.cat([part.worst for part in parts]),
    )
    return stored(whole, contract)


def product_error(
    one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], contract: Contract
) -> tuple[Tensor, Tensor]:
    """The product of two tensors that err, each given with its error, and its error."""
    (first, first_error), (second, second_error) = one, other
    terms = first * second
    error = first_error * (second.abs() + second_error) + first.abs() * second_error
    once = contract.unit_roundoff + contract.accumulator_roundoff
    return terms, error + once * (terms.abs() + error)


def temperature_gradient(
    behind: tuple[Tensor, Tensor],
    weighed: tuple[Tensor, Tensor],
    score: tuple[Tensor, Tensor],
    products: tuple[Tensor, Tensor],
    contract: Contract,
) -> Gradient:
    """The gradient of temperatures ``[H]``, with its bound.

    ``behind`` is the gradient of the queries behind the temperature, ``weighed`` the queries before
    it; ``score`` the gradient of the scores, ``products`` the scores before the temperature, each
    with its error. An implementation sums over channels or over keys: what cancels differs.
    """
    by_channel = summed(*product_error(behind, weighed, contract), (1,), contract)
    by_key = summed(*product_error(score, products, contract), (1,), contract)
    worst = torch.maximum(by_channel.worst, by_key.worst)
    return stored(UnstoredGradient(value=by_channel.value, worst=worst), contract)


def table_gradient(
    attention: golden.Attention, pairs: tuple[Tensor, Tensor], contract: Contract
) -> Gradient:
    """The gradient of a relative table ``[N, H]``, with its bound.

    ``pairs`` is the gradient of the biased scores with its error. The terms of a bucket may be
    added up one by one in the working dtype, as gathering does on its way back.
    """
    gradient, wrong = (each[..., : attention.given_key.shape[-2]] for each in pairs)
    buckets, table = attention.run["buckets"], attention.learned["relative_table"]

    def total(terms: Tensor) -> Tensor:
        summed = golden.sum_to_table(terms.contiguous(), buckets, table)
        return torch.zeros_like(table) if summed is None else summed

    sizes, error = total(gradient.abs() + wrong), total(wrong)
    count = int(total(torch.ones_like(gradient)).amax()) if gradient.numel() else 0
    relative = gamma(count + model.SUM_ROUNDINGS, contract.accumulator_roundoff)
    stores = 1 + count + gradient.shape[0]
    worst = error + relative * sizes + worst_of_stores(sizes, stores, contract)
    worst = worst + contract.unit_roundoff * sizes
    worst = worst + (contract.accumulator_underflow + contract.underflow) * (count + 1)
    return stored(UnstoredGradient(value=total(gradient), worst=worst), contract)


def slope_gradient(
    attention: golden.Attention,
    pairs: tuple[Tensor, Tensor],
    farthest: Tensor,
    contract: Contract,
) -> Gradient:
    """The gradient of slopes, ``[H]`` or ``[B, H]``, with its bound.

    ``pairs`` is the gradient of the biased scores with its error, ``farthest [.., Lq, Lk]`` the
    largest number that a correct distance is made of. A row's gradients sum to zero but for their
    errors.
    """
    length = attention.given_key.shape[-2]
    gradient, wrong = (each[..., :length] for each in pairs)
    distance = golden.distances(attention.query_places, attention.key_places)
    terms = -gradient * distance
    sizes = (gradient.abs() + wrong) * farthest
    once = contract.accumulator_roundoff + model.DISTANCE_STORES * contract.unit_roundoff
    error = wrong * farthest + once * sizes
    of_items = attention.learned["alibi_slopes"].dim() > 1
    made = summed(terms, error, (0, 1) if of_items else (1,), contract)
    return stored(made, contract)
