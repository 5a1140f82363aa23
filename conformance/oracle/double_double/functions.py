"""The exponential and the hyperbolic tangent of double-double numbers.

``x = n ln 2 + r`` with ``|r| <= (ln 2) / 2``; ``exp(r / 64) - 1`` comes from Taylor's series, and
six times ``e -> 2 e + e^2`` makes it ``exp(r) - 1`` without a cancellation.

With u = 2^-53 the series is off by 10 u^2 of itself (its last sum and product), each doubling adds
3 u^2 and a little, and together they amplify by at most 1.2: ``exp(r) - 1`` is good to 36 u^2. Of
``exp(r)`` that is at most 15 u^2, and with the reduction and the sum with 1 ``exp`` is good to
20 u^2. ``tanh`` is good to 80 u^2: below n = 0, ``exp - 1`` is off by 50 u^2 at most, which the
quotient amplifies by at most 1.2 and rounds. What an error of the argument does comes on top.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial
from typing import Final

import torch
from torch import Tensor

from .arithmetic import (
    DoubleDouble,
    add,
    add_number,
    divide,
    exact,
    multiply,
    negate,
    select,
    shift,
)

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
    x = _with(x, vanishes, 0.0)
    return _with(_one_more(*_reduced(x)), vanishes, 0.0)


def tanh(x: DoubleDouble) -> DoubleDouble:
    """The hyperbolic tangent, to full relative precision near zero as well."""
    sign = torch.where(x.high < 0, -1.0, 1.0)
    magnitude = DoubleDouble(x.high * sign, x.low * sign)
    magnitude = _with(magnitude, magnitude.high > _SATURATED, _SATURATED)
    minus = _expm1(DoubleDouble(-2.0 * magnitude.high, -2.0 * magnitude.low))
    quotient = divide(negate(minus), add_number(minus, torch.full_like(minus.high, 2.0)))
    return DoubleDouble(quotient.high * sign, quotient.low * sign)


def _expm1(x: DoubleDouble) -> DoubleDouble:
    """exp(x) - 1 for x from -80 to 0; below n = 0, exp(x) < 0.71 and two bits at most are lost."""
    reduced, exponent = _reduced(x)
    minus_one = torch.full_like(x.high, -1.0)
    return select(exponent == 0, reduced, add_number(_one_more(reduced, exponent), minus_one))


def _one_more(reduced: DoubleDouble, exponent: Tensor) -> DoubleDouble:
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


def _with(x: DoubleDouble, where: Tensor, number: float) -> DoubleDouble:
    return DoubleDouble(x.high.masked_fill(where, number), x.low.masked_fill(where, 0.0))
