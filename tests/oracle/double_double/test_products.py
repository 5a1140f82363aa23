"""Sums and matrix products, against exact rational numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Generator, Tensor

from conformance.oracle.double_double import numbers
from conformance.oracle.double_double.numbers import DoubleDouble, exact, fast_two_sum

UNIT = Fraction(1, 2**53)
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 13, 33, 100)
# Higher orders of u than the promised bound counts.
HIGHER_ORDERS = 1 + Fraction(1, 2**40)


def fractions_of(x: DoubleDouble) -> list[Fraction]:
    pairs = zip(x.high.flatten().tolist(), x.low.flatten().tolist(), strict=True)
    return [Fraction(high) + Fraction(low) for high, low in pairs]


def promised(length: int) -> Fraction:
    """The bound that the module states, over the sum of magnitudes."""
    levels = math.ceil(math.log2(length))
    return (8 + 2 * levels * (levels + 3)) * UNIT**2 * HIGHER_ORDERS


def spread(shape: tuple[int, ...], generator: Generator, octaves: float) -> Tensor:
    """Numbers of either sign over a range of magnitudes."""
    signed = torch.randn(shape, generator=generator, dtype=torch.float64)
    powers = octaves * (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5)
    return signed * torch.exp2(powers)


def some_numbers(shape: tuple[int, ...], generator: Generator, octaves: float) -> DoubleDouble:
    high = spread(shape, generator, octaves)
    low = (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5) * 2.0**-53
    return fast_two_sum(high, high * low)


def dot(row: list[Fraction], column: list[Fraction]) -> tuple[Fraction, Fraction]:
    """The exact dot product and the sum of the magnitudes of its terms."""
    terms = [x * y for x, y in zip(row, column, strict=True)]
    return sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))


@pytest.mark.parametrize("octaves", [0.0, 40.0, 300.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_dot_products_keep_the_promised_bound(length: int, octaves: float) -> None:
    """Dot products of double-doubles of any length and spread are as exact as promised."""
    generator = Generator().manual_seed(length)
    left, right = (some_numbers((6, length), generator, octaves) for _ in range(2))
    transposed = DoubleDouble(right.high.T, right.low.T)
    products = iter(fractions_of(numbers.matmul(left, transposed)))
    rows = [fractions_of(DoubleDouble(h, low)) for h, low in zip(left.high, left.low, strict=True)]
    columns = [
        fractions_of(DoubleDouble(h, low)) for h, low in zip(right.high, right.low, strict=True)
    ]
    for row in rows:
        for column in columns:
            wanted, magnitude = dot(row, column)
            assert abs(next(products) - wanted) <= promised(length) * magnitude


@pytest.mark.parametrize("length", LENGTHS)
def test_cancelling_sums_keep_the_promised_bound(length: int) -> None:
    """Terms that cancel to a part in 1e16 leave what they should."""
    generator = Generator().manual_seed(length)
    terms = some_numbers((length,), generator, 30.0)
    opposite = DoubleDouble(-terms.high * (1 + 2.0**-52), -terms.low)
    both = DoubleDouble(*(torch.cat(parts) for parts in zip(terms, opposite, strict=True)))
    exactly = fractions_of(both)
    total = fractions_of(numbers.total(both))[0]
    magnitude = sum(map(abs, exactly), Fraction(0))
    assert abs(total - sum(exactly, Fraction(0))) <= promised(2 * length) * magnitude


def test_powers_of_two_pass_through() -> None:
    """Rows and columns that are huge or tiny give the same bits as ordinary ones."""
    generator = Generator().manual_seed(0)
    left = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    right = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    rows = torch.tensor([[2.0**-900], [1.0], [2.0**1000]], dtype=torch.float64)
    columns = torch.tensor([[2.0**900, 1.0, 2.0**-900, 2.0**10]], dtype=torch.float64)
    plain = numbers.matmul(exact(left), exact(right))
    scaled = numbers.matmul(exact(left * rows), exact(right * columns))
    factor = rows * columns
    judged = torch.isfinite(factor) & (factor > 2.0**-800)
    assert int(judged.sum()) == 7
    for ordinary, stretched in zip(plain, scaled, strict=True):
        assert torch.equal(stretched[judged], (ordinary * factor)[judged])


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and rows taken one at a time give the same bits as all of them at once."""
    generator = Generator().manual_seed(1)
    left = exact(torch.randn(2, 3, 5, 9, generator=generator, dtype=torch.float64))
    right = exact(torch.randn(2, 3, 9, 4, generator=generator, dtype=torch.float64))
    whole = numbers.matmul(left, right)
    for terms in (1, 2 * 9 * 4, 2 * 5 * 9 * 4):
        monkeypatch.setattr(numbers, "_TERMS", terms)
        pieces = numbers.matmul(left, right)
        assert torch.equal(pieces.high, whole.high)
        assert torch.equal(pieces.low, whole.low)


@pytest.mark.parametrize("axes", [(0, 3, 2), (2, 0, 2), (2, 3, 0)])
def test_an_axis_may_be_empty(axes: tuple[int, int, int]) -> None:
    """No rows, no terms or no columns give zeros of the shape that torch gives."""
    rows, terms, columns = axes
    left, right = torch.ones(rows, terms).double(), torch.ones(terms, columns).double()
    assert torch.equal(numbers.matmul(exact(left), exact(right)).high, left @ right)


def test_a_value_that_is_not_finite_stays_in_its_column() -> None:
    """NaN or infinity in one column leaves the other columns' bits alone."""
    generator = Generator().manual_seed(2)
    left = exact(torch.randn(3, 5, generator=generator, dtype=torch.float64))
    right = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    clean = numbers.matmul(left, exact(right))
    right[2, 0], right[3, 1] = math.nan, math.inf
    product = numbers.matmul(left, exact(right))
    assert torch.equal(product.high[:, 2:], clean.high[:, 2:])
    assert torch.equal(product.low[:, 2:], clean.low[:, 2:])
    assert not bool(torch.isfinite(product.high[:, :2] + product.low[:, :2]).any())
