"""The rounding of a stored logit scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.declare.promises import declare
from conformance.tolerance import contract_for
from conformance.tolerance.model import UNIT_ROUNDOFF
from conformance.tolerance.spread import rounded, scale_rounding

TYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@pytest.mark.parametrize("dtype", TYPES)
@given(number=st.floats(1e-3, 1e3))
def test_rounding_is_that_of_the_dtype(dtype: str, number: float) -> None:
    """A number is rounded as torch rounds it."""
    stored = float(torch.tensor(number, dtype=torch.float64).to(TYPES[dtype]))
    assert rounded(number, UNIT_ROUNDOFF[dtype]) == stored


@pytest.mark.parametrize("dtype", TYPES)
@given(scale=st.floats(1e-3, 10.0))
def test_every_form_of_a_stored_scale_is_allowed(dtype: str, scale: float) -> None:
    """The number, its inverse, and the root on both sides err by what is allowed, at most 2u."""
    contract = contract_for(declare("core"), dtype, scale)
    allowed = scale_rounding(scale, contract)
    exact = torch.tensor(scale, dtype=torch.float64)
    forms = (
        exact.to(TYPES[dtype]).double(),
        1.0 / (1.0 / exact).to(TYPES[dtype]).double(),
        exact.sqrt().to(TYPES[dtype]).double().square(),
    )
    for form in forms:
        assert abs(float(form / exact) - 1.0) <= allowed
    assert allowed <= 2.1 * contract.unit_roundoff + contract.accumulator_roundoff


@pytest.mark.parametrize("scale", [0.25, 1.0, 2.0**-8, -0.25])
def test_a_power_of_four_is_stored_exactly(scale: float) -> None:
    """Then only the arithmetic with the scale rounds."""
    contract = contract_for(declare("core"), "bfloat16", scale)
    assert scale_rounding(scale, contract) == contract.accumulator_roundoff


def test_no_scale_is_no_error() -> None:
    """A scale of zero, or one whose inverse overflows, has no relative error of its own."""
    contract = contract_for(declare("core"), "bfloat16", 0.0)
    for scale in (0.0, 5e-324):
        assert scale_rounding(scale, contract) == contract.accumulator_roundoff
