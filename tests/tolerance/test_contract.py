"""What a declaration lets a candidate round."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.declare.promises import declare
from conformance.tolerance import Contract, contract_for
from conformance.tolerance.contract import gamma, scales_exactly

SCALE = 8**-0.5


def contract(dtype: str, scale: float = SCALE, **promises: Any) -> Contract:
    return contract_for(declare("core", **promises), dtype, scale)


def test_float32_rounds_nothing_but_what_it_computes() -> None:
    """Storing scores or weights in float32 adds nothing to accumulating in float32."""
    float32 = contract("float32", scores="eager")
    assert float32.unit_roundoff == float32.accumulator_roundoff == 2.0**-24
    assert (float32.score_roundoff, float32.weight_roundoff, float32.operand_roundoff) == (0, 0, 0)
    assert float32.sides == 1


@pytest.mark.parametrize(("dtype", "roundoff"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_halves_accumulate_in_float32(dtype: str, roundoff: float) -> None:
    """Half precision rounds stored weights, and stored scores where they are materialised."""
    eager, fused = contract(dtype, scores="eager"), contract(dtype, scores="fused")
    assert eager.accumulator_roundoff == fused.accumulator_roundoff == 2.0**-24
    assert eager.weight_roundoff == fused.weight_roundoff == roundoff
    assert (eager.score_roundoff, fused.score_roundoff) == (roundoff, 0.0)


def test_native_accumulation_is_as_coarse_as_the_dtype() -> None:
    """With accumulate="native" every addition is rounded to the working dtype."""
    native = contract("bfloat16", accumulate="native")
    assert native.accumulator_roundoff == native.unit_roundoff == 2.0**-8


def test_a_declared_accumulator_counts() -> None:
    """A float32 candidate that promises to add in float64 is held to it."""
    declared = contract("float32", accumulate="float64", scores="fused")
    assert declared.accumulator_roundoff == 2.0**-53
    assert declared.sides == 2


def test_tensor_cores_truncate() -> None:
    """Halves and tf32 on a device other than the CPU add with twice the roundoff."""
    assert contract("bfloat16", devices=["cpu", "cuda"]).accumulator_roundoff == 2.0**-23
    assert contract("float32", devices=["cuda"]).accumulator_roundoff == 2.0**-24
    assert contract("float32", devices=["cuda"], tf32=True).accumulator_roundoff == 2.0**-23


def test_tf32_rounds_operands_of_float32_only() -> None:
    """Declaring tf32 does not coarsen float64."""
    assert contract("float32", tf32=True).operand_roundoff == 2.0**-10
    assert contract("float64", tf32=True).operand_roundoff == 0.0


def test_two_float64_computations_may_err_on_both_sides() -> None:
    """The golden is float64 itself, so a float64 candidate gets twice the bound."""
    assert contract("float64").sides == 2


@pytest.mark.parametrize("scale", [1.0, 0.25, 16**-0.5, 256**-0.5, 4.0, -0.25, 0.0])
def test_a_power_of_four_scales_operands_exactly(scale: float) -> None:
    """Its root is a power of two; only a query that takes log2(e) with the scale is rounded."""
    assert scales_exactly(scale)
    assert contract("float32", scale).pre_scaling_roundings == 1


@pytest.mark.parametrize("scale", [0.5, 2.0, 8**-0.5, 0.3, 3.0])
def test_any_other_scale_rounds_operands(scale: float) -> None:
    """A scale that is not a power of four costs two roundings when applied to the operands."""
    assert contract("float32", scale).pre_scaling_roundings == 2


def test_an_unknown_dtype_is_refused() -> None:
    """There is no bound for a dtype without a model, and the message lists those with one."""
    with pytest.raises(ValueError, match="dtype is 'int8': known are float64, float32"):
        contract("int8")


@given(count=st.integers(1, 2**22), bits=st.sampled_from([8, 11, 24, 53]))
def test_gamma_is_the_sharp_form_of_the_textbook_constant(count: int, bits: int) -> None:
    """It lies between n u and n u / (1 - n u), and stays finite past that formula's range."""
    roundoff = 2.0**-bits
    relative = gamma(count, roundoff)
    assert math.isfinite(relative)
    assert relative >= count * roundoff * (1 - 1e-15)
    if count * roundoff < 0.5:
        assert relative <= count * roundoff / (1 - count * roundoff) * (1 + 1e-15)
