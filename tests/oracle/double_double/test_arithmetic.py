"""The elementary operations, against exact rational numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.oracle.double_double import numbers
from conformance.oracle.double_double.numbers import DoubleDouble, exact

UNIT = Fraction(1, 2**53)
# Relative errors in squared unit roundoffs, as the module's docstring promises them.
BOUNDS = {"add": 3, "multiply": 7, "divide": 15}
EXACTLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
}

# Within these magnitudes no rounding error of a product underflows and nothing overflows.
normal = st.floats(2.0**-300, 2.0**300)
highs = normal | normal.map(lambda number: -number)


@st.composite
def double_doubles(draw: st.DrawFn) -> DoubleDouble:
    """A float64 and up to half a unit in its last place."""
    high = torch.tensor(draw(highs), dtype=torch.float64)
    fraction = draw(st.floats(-1.0, 1.0)) * 2.0**-53
    return numbers.fast_two_sum(high, high.abs() * fraction)


def value_of(x: DoubleDouble) -> Fraction:
    return Fraction(float(x.high)) + Fraction(float(x.low))


def near(x: DoubleDouble) -> list[DoubleDouble]:
    """Partners with which x cancels all but completely."""
    step = abs(float(x.high)) * 2.0**-52
    return [
        numbers.negate(x),
        DoubleDouble(-x.high + step, x.low),
        DoubleDouble(-x.high, x.low),
        numbers.fast_two_sum(-x.high, 0.7 * x.low + 1e-24 * x.high),
    ]


@given(double_doubles(), double_doubles(), st.data())
@pytest.mark.parametrize("name", BOUNDS)
def test_operation_keeps_its_bound(
    name: str, x: DoubleDouble, y: DoubleDouble, data: st.DataObject
) -> None:
    """Sum, product and quotient are as near to the exact one as promised, cancelled or not."""
    if data.draw(st.booleans()):
        y = data.draw(st.sampled_from(near(x)))
    wanted = EXACTLY[name](value_of(x), value_of(y))
    got = getattr(numbers, name)(x, y)
    assert abs(value_of(got) - wanted) <= BOUNDS[name] * UNIT**2 * abs(wanted)
    assert float(got.high) == float(got.high + got.low)


@given(double_doubles(), highs)
def test_sum_with_a_number_keeps_its_bound(x: DoubleDouble, number: float) -> None:
    """A sum with a float64 is off by two squared unit roundoffs at most."""
    for partner in (number, -float(x.high)):
        got = numbers.add_number(x, torch.tensor(partner, dtype=torch.float64))
        wanted = value_of(x) + Fraction(partner)
        assert abs(value_of(got) - wanted) <= 2 * UNIT**2 * abs(wanted)


@given(highs, highs)
def test_product_of_two_numbers_is_exact(a: float, b: float) -> None:
    """The rounded product and its error are the product itself."""
    left, right = (torch.tensor(number, dtype=torch.float64) for number in (a, b))
    product, error = numbers.two_product(left, right, numbers.halves(left), numbers.halves(right))
    assert Fraction(float(product)) + Fraction(float(error)) == Fraction(a) * Fraction(b)


def test_every_power_of_two_is_exact() -> None:
    """From the smallest normal number to the largest power of two, without a rounding."""
    exponents = range(-1022, 1024)
    assert numbers.power_of_two(torch.tensor(exponents)).tolist() == [2.0**e for e in exponents]


@pytest.mark.parametrize(
    ("start", "exponent"),
    [(-1074, 2046), (-1022, 1900), (0, 0), (3, -1), (1023, -1), (1023, -2044)],
)
def test_shift_goes_past_the_range_of_one_power(start: int, exponent: int) -> None:
    """A tiny number is raised, and a huge one lowered, by more than a float64 power of two."""
    shifted = numbers.shift(exact(2.0**start), torch.tensor(exponent))
    assert shifted == (2.0 ** (start + exponent), 0.0)
