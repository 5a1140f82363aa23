"""Numbers at the ends of formats: products past float16, tiny and subnormal numbers."""

from __future__ import annotations

import pytest
import torch
from examples import core, layer, quickly
from torch import Tensor

from candidates.broken.half_precision import FusedCore
from candidates.eager import Call, EagerCore
from conformance.base.results import ClauseResult
from conformance.declare.candidate import Candidate

OVERFLOW, SUBNORMAL = "numerics.overflow-half", "numerics.subnormal"
FORMATS = ["float32", "float16", "bfloat16"]


def ran(candidate: Candidate, slug: str, dtype: str) -> ClauseResult:
    """One clause on as many examples as the quick profile has."""
    return quickly(candidate, slug, dtype)


class ScaledFirst(EagerCore):
    """Scales the query before the product, which then stays in float16's range."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        """The scaled dot products."""
        return (call.query * self.scale(call)) @ key.transpose(-1, -2)


def test_a_stored_product_overflows() -> None:
    """Torch's products in float16, scaled afterwards, are infinite: the clause says so."""
    result = ran(core(), OVERFLOW, "float16")
    assert result.status == "failed"
    assert "products past 65504 give a wrong answer" in result.reason


@pytest.mark.parametrize(
    "candidate",
    [core(ScaledFirst()), core(FusedCore(), scores="fused")],
    ids=["scaled-first", "fused"],
)
def test_who_scales_first_or_computes_wide_passes(candidate: Candidate) -> None:
    """Both usual remedies keep the clause, and some examples bind."""
    result = ran(candidate, OVERFLOW, "float16")
    assert result.status == "passed", result.reason
    assert result.binding >= 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_other_dtypes_do_not_overflow(dtype: str) -> None:
    """The clause speaks of float16 alone and says so."""
    result = ran(core(), OVERFLOW, dtype)
    assert result.status == "not-applicable"
    assert "float16 alone" in result.reason


def test_native_accumulators_may_overflow() -> None:
    """To a candidate that declares to add up in float16 it does not apply."""
    result = ran(core(accumulate="native"), OVERFLOW, "float16")
    assert result.status == "not-applicable"
    assert "declares to add up in float16" in result.reason


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])
def test_correct_candidates_pass_with_tiny_numbers(candidate: Candidate, dtype: str) -> None:
    """Tiny and subnormal numbers show something, and accuse nobody."""
    result = ran(candidate, SUBNORMAL, dtype)
    assert result.status == "passed", result.reason
    assert result.binding >= 1


def test_flushing_subnormal_numbers_is_allowed() -> None:
    """What hardware may do with numbers below the smallest normal one is no mistake."""
    least = torch.finfo(torch.float32).smallest_normal

    def flushed(tensor: Tensor) -> Tensor:
        return tensor.masked_fill(tensor.abs() < least, 0.0)

    class Flushing(EagerCore):
        def attend(self, call: Call) -> Tensor | tuple[Tensor, Tensor]:
            return super().attend(
                call.replace(
                    query=flushed(call.query), key=flushed(call.key), value=flushed(call.value)
                )
            )

        def mix(self, weights: Tensor, value: Tensor) -> Tensor:
            return flushed(super().mix(flushed(weights), value))

    result = ran(core(Flushing()), SUBNORMAL, "float32")
    assert result.status == "passed", result.reason


@pytest.mark.parametrize("dtype", FORMATS)
def test_small_normal_numbers_are_no_zeros(dtype: str) -> None:
    """Queries that large keys make up for, and values that are all small, must not be dropped."""

    class Dropping(FusedCore):
        def scores(self, call: Call, key: Tensor) -> Tensor:
            small = call.query.abs() < 2.0**-6
            return super().scores(call.replace(query=call.query.masked_fill(small, 0.0)), key)

    assert ran(core(Dropping(), scores="fused"), SUBNORMAL, dtype).status == "failed"


def test_the_golden_of_float64_ends_there_too() -> None:
    """In float64 nothing could be said."""
    assert ran(core(), SUBNORMAL, "float64").status == "not-applicable"
