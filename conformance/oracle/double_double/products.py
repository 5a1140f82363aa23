"""Sums and matrix products of double-double numbers, many at once.

Every product of a dot product is split into its rounded value and its exact error, all terms at a
time; then halves of the terms are added to each other, the rounding errors of these sums joining
the low parts, which are added in float64 (Ogita, Rump and Oishi, "Accurate sum and dot product",
2005: their Dot2 with another order of the terms).

With u = 2^-53, S the sum of the magnitudes of n products and L = ceil(log2 n), the result is off by
at most ``(8 + 2 L (L + 3)) u^2 S``, to first order: the low part of a product is below 3 u of it
and takes three roundings and the neglected product of low parts; a level adds rounding errors of u
S, so that low parts are below (3 + L) u S in all, and rounds them twice.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .arithmetic import DoubleDouble, halves, power_of_two, shift, two_product, two_sum

# Terms held at once, 2 MiB an array: more falls out of the caches, fewer repeat the preparation.
_TERMS: Final = 2**18
# Exponents beyond it stay where they are: powers of two from -1000 to 1000 have an inverse.
_LARGEST_EXPONENT: Final = 1000


def total(terms: DoubleDouble) -> DoubleDouble:
    """The sum over the last axis, which stays with length 1."""
    high, low = (part.movedim(-1, 0).contiguous() for part in terms)
    if high.shape[0] == 0:
        empty = torch.zeros_like(high.sum(dim=0)).unsqueeze(-1)
        return DoubleDouble(empty, empty)
    summed = _reduce(high.clone(), low.clone())
    return DoubleDouble(summed.high.unsqueeze(-1), summed.low.unsqueeze(-1))


def matmul(left: DoubleDouble, right: DoubleDouble) -> DoubleDouble:
    """The matrix product of ``[..., N, K]`` and ``[..., K, M]`` with the same leading axes.

    Rows of the left and columns of the right are brought near one by powers of two first: neither
    huge nor tiny entries leave the range in which products are exact, unless both are in one row.
    """
    shape = (*left.high.shape[:-1], right.high.shape[-1])
    if 0 in shape or left.high.shape[-1] == 0:
        zeros = left.high.new_zeros(shape)
        return DoubleDouble(zeros, zeros)
    left, left_exponent = _normalised(left, -1)
    right, right_exponent = _normalised(right, -2)
    product = _in_pieces(_three_axes(left), _three_axes(right))
    unscaled = DoubleDouble(product.high.reshape(shape), product.low.reshape(shape))
    return shift(unscaled, left_exponent + right_exponent)


def _three_axes(x: DoubleDouble) -> DoubleDouble:
    size = x.high.shape[-2:]
    return DoubleDouble(x.high.reshape(-1, *size), x.low.reshape(-1, *size))


def _normalised(x: DoubleDouble, axis: int) -> tuple[DoubleDouble, Tensor]:
    """Divide x by powers of two near its largest entries along an axis; also their exponents."""
    largest = x.high.abs().amax(dim=axis, keepdim=True)
    finite = torch.where(torch.isfinite(largest), largest, 1.0)
    exponent = torch.frexp(finite).exponent.long().clamp_(-_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    factor = power_of_two(-exponent)
    return DoubleDouble(x.high * factor, x.low * factor), exponent


def _in_pieces(left: DoubleDouble, right: DoubleDouble) -> DoubleDouble:
    """Matrix products ``[G, N, K] @ [G, K, M]``, over some groups or some rows of one at a time."""
    columns = right.high.shape[-1]
    rows, length = left.high.shape[-2:]
    groups_at_once = max(1, _TERMS // (rows * columns * length))
    rows_at_once = max(1, _TERMS // (columns * length))
    products = [
        _rows_at_once(_pick(left, group), _pick(right, group), rows_at_once)
        for group in _slices(left.high.shape[0], groups_at_once)
    ]
    return _joined(products, dim=0)


def _rows_at_once(left: DoubleDouble, right: DoubleDouble, count: int) -> DoubleDouble:
    length = left.high.shape[-2]
    pieces = [_dots(_pick(left, (slice(None), s)), right) for s in _slices(length, count)]
    return _joined(pieces, dim=1)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, length, step)]


def _pick(x: DoubleDouble, index: slice | tuple[slice, ...]) -> DoubleDouble:
    return DoubleDouble(x.high[index], x.low[index])


def _joined(pieces: list[DoubleDouble], dim: int) -> DoubleDouble:
    if len(pieces) == 1:
        return pieces[0]
    return DoubleDouble(
        torch.cat([piece.high for piece in pieces], dim),
        torch.cat([piece.low for piece in pieces], dim),
    )


def _dots(left: DoubleDouble, right: DoubleDouble) -> DoubleDouble:
    """``[G, N, K] @ [G, K, M]``, all terms at once with their axis first: ``[K, G, N, M]``."""
    a, a_low = (part.permute(2, 0, 1).unsqueeze(-1).contiguous() for part in left)
    b, b_low = (part.permute(1, 0, 2).unsqueeze(-2).contiguous() for part in right)
    high, low = two_product(a, b, halves(a), halves(b))
    if bool(b_low.any()):
        low.addcmul_(a, b_low)
    if bool(a_low.any()):
        low.addcmul_(a_low, b)
    return _reduce(high, low)


def _reduce(high: Tensor, low: Tensor) -> DoubleDouble:
    """The sum over the first axis, of at least one term; overwrites its arguments."""
    while high.shape[0] > 1:
        kept = (high.shape[0] + 1) // 2
        paired = high.shape[0] - kept
        summed, error = two_sum(high[:paired], high[kept:])
        high[:paired] = summed
        low[:paired] += error.add_(low[kept:])
        high, low = high[:kept], low[:kept]
    return DoubleDouble(*two_sum(high[0], low[0]))
