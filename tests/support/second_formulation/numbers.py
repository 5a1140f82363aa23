"""Numbers that carry their exact value and a bound on what float64 makes of them.

``value`` is an mpmath number of ``DIGITS`` digits. ``error`` bounds its distance from the result of
the same operations in float64, in whatever order sums are taken: each operation passes on the
errors of its operands and adds the rounding of its own result (Higham, "Accuracy and Stability of
Numerical Algorithms", chapters 2 and 3: ``fl(x op y) = (x op y)(1 + d)`` with ``|d| <= u``, and
``gamma_n = n u / (1 - n u)`` for a sum of n + 1 terms in any order).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import mpmath

DIGITS: Final = 50
UNIT_ROUNDOFF: Final = 2.0**-53
SMALLEST: Final = 2.0**-1022  # the smallest normal number: safe where subnormals are flushed
# exp, tanh, sin, cos and pow of torch are promised within 1.0 unit in the last place (SLEEF's u10
# functions, or the C library's), and half such a unit is the unit roundoff.
FUNCTION_ROUNDINGS: Final = 2

_exact = mpmath.mp.clone()
_exact.dps = DIGITS


@contextmanager
def digits(count: int) -> Iterator[None]:
    """Compute with another number of decimal digits inside the ``with`` block."""
    before = _exact.dps
    _exact.dps = count
    try:
        yield
    finally:
        _exact.dps = before


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value and a bound on how far the float64 result may lie from it."""

    value: Any
    error: float

    def __add__(self, other: Number) -> Number:
        return _rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Number) -> Number:
        return _rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Number) -> Number:
        here, there = float(abs(self.value)), float(abs(other.value))
        passed_on = here * other.error + there * self.error + self.error * other.error
        return _rounded(self.value * other.value, passed_on)

    def __truediv__(self, other: Number) -> Number:
        quotient = self.value / other.value
        smallest = float(abs(other.value)) - other.error
        passed_on = self.error + float(abs(quotient)) * other.error
        return _rounded(quotient, passed_on / smallest if smallest > 0 else math.inf)

    @property
    def is_minus_infinity(self) -> bool:
        """Whether this is a logit that leaves its key no weight at all."""
        return bool(self.value == -_exact.inf)


def _rounded(value: Any, error: float, roundings: int = 1) -> Number:
    if not _exact.isfinite(value):
        return Number(value, 0.0)
    largest = float(abs(value)) + error
    return Number(value, error + roundings * UNIT_ROUNDOFF * largest + SMALLEST)


def number(value: float | Number) -> Number:
    """A float taken as exact; a Number as it is."""
    return value if isinstance(value, Number) else Number(_exact.mpf(value), 0.0)


def perturbed(value: float, relative: float) -> Number:
    """A float that reaches the computation with a relative error, such as a rounding to float32."""
    return Number(_exact.mpf(value), relative * abs(value))


def total(terms: Iterable[Number]) -> Number:
    """The sum, whatever the order of the additions."""
    terms = list(terms)
    passed_on = math.fsum(term.error for term in terms)
    magnitude = math.fsum(float(abs(term.value)) for term in terms) + passed_on
    steps = len(terms) * UNIT_ROUNDOFF
    return Number(
        _exact.fsum(term.value for term in terms), passed_on + steps / (1 - steps) * magnitude
    )


def dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    """The sum of products."""
    return total(x * y for x, y in zip(left, right, strict=True))


def largest(numbers: Sequence[Number]) -> Number:
    """The maximum; rounded entries may elect another, which lies no further than their errors."""
    return Number(max(entry.value for entry in numbers), max(entry.error for entry in numbers))


def exp(exponent: Number) -> Number:
    """The exponential, in which an error of the exponent becomes a factor."""
    value = _exact.exp(exponent.value)
    return _rounded(value, float(value) * math.expm1(exponent.error), FUNCTION_ROUNDINGS)


def tanh(argument: Number) -> Number:
    """The hyperbolic tangent, whose slope is at most one."""
    return _rounded(_exact.tanh(argument.value), argument.error, FUNCTION_ROUNDINGS)


def root(square: Number) -> Number:
    """The square root of a number that is not negative."""
    value = _exact.sqrt(square.value)
    # |sqrt(x + e) - sqrt(x)| is at most the root of e, and at most e / sqrt(x).
    spread = math.sqrt(square.error)
    if value > 0:
        spread = min(spread, square.error / float(value))
    return _rounded(value, spread)


def sin(angle: Number) -> Number:
    """The sine, whose slope is at most one."""
    return _rounded(_exact.sin(angle.value), angle.error, FUNCTION_ROUNDINGS)


def cos(angle: Number) -> Number:
    """The cosine, whose slope is at most one."""
    return _rounded(_exact.cos(angle.value), angle.error, FUNCTION_ROUNDINGS)


def power(base: float, exponent: Number) -> Number:
    """An exact positive base to a rounded exponent."""
    value = _exact.mpf(base) ** exponent.value
    spread = math.expm1(abs(math.log(base)) * exponent.error)
    return _rounded(value, float(value) * spread, FUNCTION_ROUNDINGS)


ZERO: Final = number(0.0)
NAN: Final = number(math.nan)
MINUS_INFINITY: Final = number(-math.inf)
