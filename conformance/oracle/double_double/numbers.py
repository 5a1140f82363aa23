"""Double-double numbers, pairs of float64 tensors: arithmetic, matrix products, exp and tanh."""

from __future__ import annotations

from fractions import Fraction
from math import factorial
from typing import Final, NamedTuple

import torch
from torch import Tensor

# A float64 has 53 bits: this cuts one into two halves of at most 26 bits (Dekker, 1971).
_SPLITTER: Final = 2.0**27 + 1.0
# The layout of a float64: its exponent stands above 52 bits of the fraction, with this offset.
_FRACTION_BITS: Final = 52
_EXPONENT_OFFSET: Final = 1023


class DoubleDouble(NamedTuple):
    """The number ``high + low``, where ``high`` is that sum rounded to float64."""

    high: Tensor
    low: Tensor


def exact(number: Tensor | float) -> DoubleDouble:
    """A float64 tensor, or one number, taken as it is."""
    high = torch.as_tensor(number, dtype=torch.float64)
    return DoubleDouble(high, torch.zeros_like(high))


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum and its rounding error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)).add_(b - part)


def fast_two_sum(a: Tensor, b: Tensor) -> DoubleDouble:
    """The rounded sum and its rounding error where ``|a| >= |b|`` or a is zero (Dekker)."""
    total = a + b
    return DoubleDouble(total, b - (total - a))


def halves(a: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of at most 26 bits with this sum (Dekker; Veltkamp)."""
    large = _SPLITTER * a
    upper = large - (large - a)
    return upper, a - upper


def two_product(
    a: Tensor, b: Tensor, a_halves: tuple[Tensor, Tensor], b_halves: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The rounded product and its rounding error (Dekker), from the factors and their halves."""
    product = a * b
    # Products of halves are exact, so it makes no difference whether torch fuses them with the sum.
    error = torch.neg(product)
    for upper_or_lower in a_halves:
        error.addcmul_(upper_or_lower, b_halves[0]).addcmul_(upper_or_lower, b_halves[1])
    return product, error


def negate(x: DoubleDouble) -> DoubleDouble:
    """Minus x, exactly."""
    return DoubleDouble(-x.high, -x.low)


def add(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """The sum, also where x and y cancel."""
    total, error = two_sum(x.high, y.high)
    small, rest = two_sum(x.low, y.low)
    total, error = fast_two_sum(total, error.add_(small))
    return fast_two_sum(total, error.add_(rest))


def add_number(x: DoubleDouble, number: Tensor) -> DoubleDouble:
    """The sum with a float64."""
    total, error = two_sum(x.high, number)
    return fast_two_sum(total, error + x.low)


def multiply(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """The product."""
    product, error = two_product(x.high, y.high, halves(x.high), halves(y.high))
    return fast_two_sum(product, error.addcmul_(x.high, y.low).addcmul_(x.low, y.high))


def divide(x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """The quotient: one step of long division by ``y.high``, and the remainder's quotient."""
    quotient = x.high / y.high
    product, error = two_product(quotient, y.high, halves(quotient), halves(y.high))
    remainder = (x.high - product) - error + x.low - quotient * y.low
    return fast_two_sum(quotient, remainder / y.high)


def select(condition: Tensor, x: DoubleDouble, y: DoubleDouble) -> DoubleDouble:
    """Take x where the condition holds, y elsewhere."""
    high = torch.where(condition, x.high, y.high)
    return DoubleDouble(high, torch.where(condition, x.low, y.low))


def power_of_two(exponent: Tensor) -> Tensor:
    """Two to integers from -1022 to 1023, exactly (``torch.exp2`` promises nearness only)."""
    return ((exponent + _EXPONENT_OFFSET) << _FRACTION_BITS).view(torch.float64)


def shift(x: DoubleDouble, exponent: Tensor) -> DoubleDouble:
    """Multiply by two to an int64 exponent in -2044..2046: exact while the parts stay normal."""
    first = exponent >> 1
    factor, other_factor = power_of_two(first), power_of_two(exponent - first)
    return DoubleDouble(x.high * factor * other_factor, x.low * factor * other_factor)


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
    product = _multiply_in_pieces(_three_axes(left), _three_axes(right))
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


def _multiply_in_pieces(left: DoubleDouble, right: DoubleDouble) -> DoubleDouble:
    """Matrix products ``[G, N, K] @ [G, K, M]``, some groups or some rows of a group at a time."""
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


# OEIS A002162, the natural logarithm of 2.
_LN_2: Final = Fraction("0.69314718055994530941723212145817656807550013436025525412068000949")
# Multiples of the first two parts by integers below 2^12 are exact; 40 + 40 + 53 bits in all.
_PART_BITS: Final = 40
# Below it the exponential is under half the smallest subnormal number, 2^-1075.
_SMALLEST_EXPONENT: Final = -746.0
_DOUBLINGS: Final = 6
# |r / 64| <= 0.0055. The term of degree 13, over the first, is 0.0055^12 / 13! < 2^-120; from
# degree 7 on (0.0055^6 / 7! < 2^-57) float64 is enough for the coefficients.
_DEGREE: Final = 12
_DOUBLE_DEGREE: Final = 6
# 1 - tanh(40) is 2 exp(-80), below 2^-114.
_SATURATED: Final = 40.0


def _parts_of_ln_2() -> tuple[float, float, float]:
    first = Fraction(int(_LN_2 * 2**_PART_BITS), 2**_PART_BITS)
    second = Fraction(int((_LN_2 - first) * 4**_PART_BITS), 4**_PART_BITS)
    return float(first), float(second), float(_LN_2 - first - second)


def _inverse_factorial(n: int) -> tuple[float, float]:
    value = Fraction(1, factorial(n))
    high = float(value)
    return high, float(value - Fraction(high))


_LN_2_PARTS: Final = _parts_of_ln_2()
_INVERSE_FACTORIALS: Final = tuple(_inverse_factorial(n) for n in range(_DEGREE + 1))


def exp(x: DoubleDouble) -> DoubleDouble:
    """The exponential of numbers up to 700; zero below -746, where it would underflow."""
    vanishes = x.high < _SMALLEST_EXPONENT
    x = _fill(x, vanishes, 0.0)
    return _fill(_add_one(*_reduced(x)), vanishes, 0.0)


def tanh(x: DoubleDouble) -> DoubleDouble:
    """The hyperbolic tangent, to full relative precision near zero as well."""
    sign = torch.where(x.high < 0, -1.0, 1.0)
    magnitude = DoubleDouble(x.high * sign, x.low * sign)
    magnitude = _fill(magnitude, magnitude.high > _SATURATED, _SATURATED)
    minus = _expm1(DoubleDouble(-2.0 * magnitude.high, -2.0 * magnitude.low))
    quotient = divide(negate(minus), add_number(minus, torch.full_like(minus.high, 2.0)))
    return DoubleDouble(quotient.high * sign, quotient.low * sign)


def _expm1(x: DoubleDouble) -> DoubleDouble:
    """exp(x) - 1 for x from -80 to 0; below n = 0, exp(x) < 0.71 and two bits at most are lost."""
    reduced, exponent = _reduced(x)
    minus_one = torch.full_like(x.high, -1.0)
    return select(exponent == 0, reduced, add_number(_add_one(reduced, exponent), minus_one))


def _add_one(reduced: DoubleDouble, exponent: Tensor) -> DoubleDouble:
    """(1 + reduced) 2^exponent."""
    return shift(add_number(reduced, torch.ones_like(reduced.high)), exponent)


def _reduced(x: DoubleDouble) -> tuple[DoubleDouble, Tensor]:
    """exp(x - n ln 2) - 1 and the integer n nearest to x / ln 2."""
    multiple = torch.round(x.high / float(_LN_2))
    for part in _LN_2_PARTS:
        x = add_number(x, -part * multiple)
    small = DoubleDouble(x.high / 2**_DOUBLINGS, x.low / 2**_DOUBLINGS)
    result = _expm1_series(small)
    for _ in range(_DOUBLINGS):
        twice = DoubleDouble(2.0 * result.high, 2.0 * result.low)
        result = add(twice, multiply(result, result))
    return result, multiple.long()


def _expm1_series(x: DoubleDouble) -> DoubleDouble:
    """The series x + x^2/2! + x^3/3! + ... by Horner's rule, the first terms in double-double."""
    tail = torch.full_like(x.high, _INVERSE_FACTORIALS[_DEGREE][0])
    for n in range(_DEGREE - 1, _DOUBLE_DEGREE, -1):
        tail = tail * x.high + _INVERSE_FACTORIALS[n][0]
    result = exact(tail)
    for n in range(_DOUBLE_DEGREE, 0, -1):
        high, low = (torch.full_like(tail, part) for part in _INVERSE_FACTORIALS[n])
        result = add(multiply(result, x), DoubleDouble(high, low))
    return multiply(result, x)


def _fill(x: DoubleDouble, where: Tensor, number: float) -> DoubleDouble:
    return DoubleDouble(x.high.masked_fill(where, number), x.low.masked_fill(where, 0.0))
