"""The exponential and the hyperbolic tangent, against mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from conformance.oracle.double_double import numbers
from conformance.oracle.double_double.numbers import DoubleDouble, exact, fast_two_sum

_exact = mpmath.mp.clone()
_exact.dps = 80
UNIT = 2.0**-53
# What the module promises, in squared unit roundoffs.
EXP, TANH = 20, 80
# A pair cannot say more than the smallest subnormal number, and is scaled down in two parts.
UNDERFLOW = 2 * 2.0**-1074


def assert_near(
    function: Callable[[DoubleDouble], DoubleDouble],
    wanted: Callable[[Any], Any],
    x: DoubleDouble,
    roundoffs: int,
) -> None:
    """Require a relative error of so many squared unit roundoffs from every element."""
    result = function(x)
    for high, low, a, b in zip(
        *(p.tolist() for p in result), *(p.tolist() for p in x), strict=True
    ):
        truth = wanted(_exact.mpf(a) + _exact.mpf(b))
        error = abs(_exact.mpf(high) + _exact.mpf(low) - truth)
        assert error <= roundoffs * UNIT**2 * abs(truth) + UNDERFLOW, (a, b)


def with_low_parts(high: Tensor) -> DoubleDouble:
    generator = Generator().manual_seed(0)
    low = (torch.rand(high.shape, generator=generator, dtype=torch.float64) - 0.5) * UNIT
    return fast_two_sum(high, high * low)


ORDINARY = torch.linspace(-40.0, 40.0, 401, dtype=torch.float64)
HALFWAY = (torch.arange(-20, 20).double() + 0.5) * math.log(2.0)
MULTIPLES = torch.arange(-1070, 1).double() * math.log(2.0)
TINY = torch.tensor([s * 2.0**-e for e in (1, 2, 5, 10, 30, 60, 300) for s in (1, -1)]).double()


@pytest.mark.parametrize("high", [ORDINARY, HALFWAY, TINY], ids=["ordinary", "halfway", "tiny"])
def test_exp_keeps_its_bound(high: Tensor) -> None:
    """Everywhere, between multiples of ln 2 where the reduced argument is largest, and near one."""
    assert_near(numbers.exp, _exact.exp, with_low_parts(high), EXP)


def test_exp_keeps_its_bound_down_to_underflow() -> None:
    """Down to -746 the error is the promised one or the end of the range of float64."""
    high = torch.cat([torch.linspace(-746.0, -600.0, 300, dtype=torch.float64), MULTIPLES])
    assert_near(numbers.exp, _exact.exp, with_low_parts(high), EXP)


@given(st.floats(-746.0, 0.0), st.floats(-0.5, 0.5))
def test_exp_of_any_argument_keeps_its_bound(high: float, low: float) -> None:
    """Arguments found by hypothesis fare no worse."""
    number = torch.tensor([high], dtype=torch.float64)
    assert_near(numbers.exp, _exact.exp, fast_two_sum(number, low * UNIT * number), EXP)


def test_exp_vanishes_beyond_the_range() -> None:
    """Arguments below the range, minus infinity included, give exactly zero."""
    beyond = exact(torch.tensor([-747.0, -1e9, -1e300, -math.inf], dtype=torch.float64))
    result = numbers.exp(beyond)
    assert result.high.tolist() == result.low.tolist() == [0.0] * 4


def test_exp_of_zero_is_one() -> None:
    """The largest logit's weight is one without an error."""
    result = numbers.exp(exact(0.0))
    assert (float(result.high), float(result.low)) == (1.0, 0.0)


@pytest.mark.parametrize("high", [ORDINARY, HALFWAY, TINY], ids=["ordinary", "halfway", "tiny"])
def test_tanh_keeps_its_bound(high: Tensor) -> None:
    """To full relative precision near zero, and where it saturates."""
    assert_near(numbers.tanh, _exact.tanh, with_low_parts(high), TANH)


@given(st.floats(-60.0, 60.0).filter(lambda x: x == 0 or abs(x) > 2.0**-900))
def test_tanh_of_any_argument_keeps_its_bound(high: float) -> None:
    """Arguments found by hypothesis fare no worse."""
    assert_near(numbers.tanh, _exact.tanh, exact(torch.tensor([high]).double()), TANH)


def test_tanh_is_odd_and_saturates() -> None:
    """The sign passes through unchanged, and huge arguments give one to all its bits."""
    high = torch.tensor([0.3, 2.0, 41.0, 1e6, 1e300], dtype=torch.float64)
    above, below = numbers.tanh(exact(high)), numbers.tanh(exact(-high))
    assert torch.equal(above.high, -below.high)
    assert torch.equal(above.low, -below.low)
    assert above.high[2:].tolist() == [1.0] * 3
