"""The size of many errors against the expected one, and the scale error that explains them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import Statistics, contract_for, core_statistics, fit

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def heads(dtype: str, width: int = 16, length: int = 40, seed: int = 0) -> list[Tensor]:
    """Query, key and value of normal numbers."""
    generator = Generator().manual_seed(seed)
    shape = (2, 2, length, width)
    return [torch.randn(shape, generator=generator).to(DTYPES[dtype]) for _ in range(3)]


def statistics(attention: golden.Attention, dtype: str) -> Statistics:
    return core_statistics(attention, contract_for(declare("core"), dtype, attention.scale))


def answer(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    """Attention with its scale off by a factor, in float32 inside, stored in the working dtype."""
    scale = factor * query.shape[-1] ** -0.5
    weights = torch.softmax(query.float() @ key.float().transpose(-1, -2) * scale, dim=-1)
    return (weights.to(query.dtype).float() @ value.float()).to(query.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_correct_answer_fits(dtype: str) -> None:
    """Rounding alone has an RMS below 1 and explains no more of a scale error than allowed."""
    for seed in range(5):
        inputs = heads(dtype, seed=seed)
        attention = golden.attend(*inputs)
        fitted = fit(answer(*inputs, 1.0).double() - attention.output, statistics(attention, dtype))
        assert fitted is not None
        assert 0.02 < fitted.rms <= 1.0
        assert abs(fitted.scale_error) <= fitted.scale_allowed
        assert fitted.counted == attention.output.numel()


@pytest.mark.parametrize(("dtype", "error"), [*((dtype, 0.02) for dtype in DTYPES)])
def test_a_wrong_scale_is_measured(dtype: str, error: float) -> None:
    """A scale off by two percent is found as that number, to a tenth, in every dtype."""
    inputs = heads(dtype)
    attention = golden.attend(*inputs)
    wrong = answer(*inputs, 1.0 + error)
    fitted = fit(wrong.double() - attention.output, statistics(attention, dtype))
    assert fitted is not None
    assert fitted.scale_error == pytest.approx(error, rel=0.1)
    assert fitted.scale_error > fitted.scale_allowed


def test_a_scale_off_by_a_millionth_is_seen_in_float32() -> None:
    """The fit sees far below what single elements show."""
    inputs = heads("float32", width=64, length=64)
    attention = golden.attend(*inputs)
    wrong = golden.attend(*inputs, scale=attention.scale * (1.0 + 1e-6)).output.float()
    error, expected = wrong.double() - attention.output, statistics(attention, "float32")
    assert bool((error.abs() <= expected.bound).all())
    fitted = fit(error, expected)
    assert fitted is not None
    assert fitted.scale_error > fitted.scale_allowed


def test_what_is_not_judged_does_not_count() -> None:
    """An element that is left out may hold anything; of more rows than are sampled, too."""
    inputs = heads("float32", length=100)
    attention = golden.attend(*inputs)
    error = answer(*inputs, 1.0).double() - attention.output
    judged = torch.ones(2, 1, 100, 1, dtype=torch.bool)
    judged[0, :, 16] = False
    expected = statistics(attention, "float32")
    before = fit(error, expected, judged)
    error[0, :, 16] = 1e9
    assert fit(error, expected, judged) == before
    assert before is not None
    assert before.counted == (2 * 64 - 1) * 2 * 16


@pytest.mark.parametrize(
    ("width", "length", "reason"), [(8, 40, "narrow"), (16, 15, "few rows"), (16, 40, "saturated")]
)
def test_no_statistic_without_many_like_errors(width: int, length: int, reason: str) -> None:
    """Narrow heads, few rows and saturated weights have no fit; the next larger size has one."""
    attention = golden.attend(*heads("float32", width, length))
    expected = statistics(attention, "float32")
    error = torch.zeros_like(attention.output)
    if reason == "saturated":
        assert fit(error, expected) is not None
        expected = replace(expected, saturated=0.01)
    assert fit(error, expected) is None


def test_no_scale_error_where_the_scale_does_nothing() -> None:
    """With one key the output does not depend on the scale, so nothing can be fitted."""
    query, key, value = heads("float32")
    attention = golden.attend(query, key[:, :, :1], value[:, :, :1])
    assert fit(torch.zeros_like(attention.output), statistics(attention, "float32")) is None


def test_a_signal_that_is_rounded_away_blames_no_scale() -> None:
    """Values of 300 in bfloat16 answer 300 whatever the weights: as if the scale were zero."""
    generator = Generator().manual_seed(0)
    query, key, value = (
        torch.randn(8, 4, 64, 32, generator=generator).bfloat16() for _ in range(3)
    )
    value = value + 300
    attention = golden.attend(0.3 * query, key, value)
    expected = statistics(attention, "bfloat16")
    error = attention.output.bfloat16().double() - attention.output
    along = float((error * expected.slope).sum() / expected.slope.square().sum())
    assert along < -0.1
    assert bool((error.abs() <= expected.bound).all())
    assert fit(error, expected) is None


def test_the_fit_knows_what_the_scale_itself_may_err() -> None:
    """In half precision the rounding of a stored scale is allowed, and finite."""
    attention = golden.attend(*heads("bfloat16", width=48))
    fitted = fit(torch.zeros_like(attention.output), statistics(attention, "bfloat16"))
    assert fitted is not None
    assert 2.0**-10 < fitted.scale_allowed < math.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_in_proportion_to_the_results_are_no_wrong_scale(dtype: str) -> None:
    """A result that is too large by a factor has a part along the scale, which is not blamed."""
    inputs = heads(dtype, length=64)
    attention = golden.attend(*inputs)
    judged = statistics(attention, dtype)
    slope = float((judged.slope * judged.result).sum() / judged.result.square().sum())
    assert abs(slope) > 0.01  # the two directions do share a part
    for factor in (-1.0, 1.0):
        error = factor * 3.0 * float((judged.scale / judged.result.abs()).median()) * judged.result
        fitted = fit(error, judged)
        assert fitted is not None
        assert not fitted.blames_scale


def test_a_scale_that_moves_results_along_themselves_is_not_fitted() -> None:
    """Where the slope is the result up to a factor nobody can tell them apart, and nobody does."""
    inputs = heads("float32")
    attention = golden.attend(*inputs)
    alike = replace(statistics(attention, "float32"), slope=0.5 * attention.output)
    fitted = fit(answer(*inputs, 1.0).double() - attention.output, alike)
    assert fitted is None or (fitted.unexplained <= fitted.rms <= 1.0 and not fitted.blames_scale)
