"""Double-double numbers: sums, products and quotients of pairs of float64 tensors.

Error bounds are relative to the exact result, with ``u = 2^-53``: 3u^2 for ``add``, 2u^2 for
``add_number``, 7u^2 for ``multiply``, 15u^2 for ``divide`` (Joldes, Muller and Popescu, "Tight and
rigorous error bounds for basic building blocks of double-word arithmetic", ACM TOMS 44, 2017,
algorithms 6, 4, 11 and 17). They hold while nothing overflows (a factor of a product past 2^996
does) and while no rounding error falls below the smallest subnormal number, 2^-1074: products
under 2^-968 lose bits of ``low``. Operands broadcast like tensors.
"""

from __future__ import annotations

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
    one, other = power_of_two(first), power_of_two(exponent - first)
    return DoubleDouble(x.high * one * other, x.low * one * other)
