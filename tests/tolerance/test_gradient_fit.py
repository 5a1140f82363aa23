"""The errors of gradients summed up: their size, and the scale errors that explain them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from conformance._golden import golden
from conformance.declare.promises import declare
from conformance.tolerance import (
    Contract,
    Gradient,
    GradientFit,
    add_gradients,
    contract_for,
    core_gradients,
    gradient_fit,
    layer_gradients,
)
from conformance.tolerance.backward_pass import backward_pass
from conformance.tolerance.gradient import Scaling
from conformance.tolerance.gradient_scaling import WeightedSum, noise
from conformance.tolerance.spread import Carried
from conformance.tolerance.statistical_gradients import Propagation, propagation

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HALVES = ("bfloat16", "float16")
ROLES = ("query", "key", "value")
STEP = 2.0**-18  # of a central difference: the cube root of float64's roundoff


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def heads(dtype: str, size: int = 16, length: int = 64, seed: int = 0) -> list[Tensor]:
    """Query, key, value and output gradient of normal numbers."""
    return [normal(2, 2, length, size, seed=4 * seed + n).to(DTYPES[dtype]) for n in range(4)]


def contract(dtype: str, scale: float) -> Contract:
    return contract_for(declare("core", scores="fused"), dtype, scale)


def exact(inputs: list[Tensor], dtype: str) -> dict[str, Gradient]:
    """The golden gradients with the default scale."""
    attention = golden.attend(*inputs[:3])
    return core_gradients(attention, inputs[3], contract(dtype, attention.scale))


def backward(inputs: list[Tensor], scale: float, back: float | None = None) -> dict[str, Tensor]:
    """A fused backward pass in float32; ``back`` is the scale that multiplies dS."""
    dtype = inputs[0].dtype
    query, key, value, gradient = (tensor.float() for tensor in inputs)
    weights = torch.softmax(query @ key.mT * scale, dim=-1)
    output = (weights.to(dtype).float() @ value).to(dtype).float()
    row_sum = (gradient * output).sum(dim=-1, keepdim=True)
    score = (weights * (gradient @ value.mT - row_sum)).to(dtype).float()
    back = scale if back is None else back
    return {
        "query": (back * (score @ key)).to(dtype),
        "key": (back * (score.mT @ query)).to(dtype),
        "value": (weights.to(dtype).float().mT @ gradient).to(dtype),
    }


def fits(actual: dict[str, Tensor], expected: dict[str, Gradient]) -> dict[str, GradientFit]:
    """The fit of every gradient; all must have one."""
    each = {}
    for name, gradient in actual.items():
        fitted = gradient_fit(gradient.double() - expected[name].value, expected[name])
        assert fitted is not None
        each[name] = fitted
    return each


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 48])
def test_a_correct_backward_pass_fits(dtype: str, size: int) -> None:
    """Rounding alone has an RMS below 1, and no scale error beyond what is allowed."""
    for seed in range(3):
        inputs = heads(dtype, size, seed=seed)
        by_role = fits(backward(inputs, size**-0.5), exact(inputs, dtype))
        assert list(by_role) == list(ROLES)
        for fitted in by_role.values():
            assert 0.01 < fitted.unexplained <= fitted.rms <= 1.0
            assert fitted.counted == inputs[0].numel()
            assert list(fitted.fits) == ["factor", "scale"]
            assert fitted.blamed == ""


@pytest.mark.parametrize("dtype", HALVES)
def test_a_wrong_factor_in_the_backward_pass_is_measured(dtype: str) -> None:
    """One percent in dQ and dK, within the bound of each element of bfloat16, is found."""
    inputs = heads(dtype)
    expected = exact(inputs, dtype)
    wrong = backward(inputs, 0.25, 0.2525)
    by_role = fits(wrong, expected)
    for name in ("query", "key"):
        if dtype == "bfloat16":
            error = (wrong[name].double() - expected[name].value).abs()
            assert bool((error <= expected[name].allowed(generic=True)).all())
        assert by_role[name].blamed == "factor"
        factor = by_role[name].factor
        assert factor is not None
        assert factor.scale_error == pytest.approx(0.01, rel=0.1)
    assert by_role["value"].blamed == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_scale_of_both_passes_is_told_from_a_factor(dtype: str) -> None:
    """One percent in forward and backward pass is found in every gradient as what it is."""
    inputs = heads(dtype, length=128)
    by_role = fits(backward(inputs, 0.2525), exact(inputs, dtype))
    assert list(by_role) == list(ROLES)
    for fitted in by_role.values():
        assert fitted.blamed == "scale"
        assert fitted.scale is not None
        assert fitted.scale.scale_error == pytest.approx(0.01, rel=0.1)


def test_a_hundred_thousandth_is_seen_in_float32() -> None:
    """A factor off by a hundred thousandth lies within every bound, and is found."""
    inputs = heads("float32")
    expected, wrong = exact(inputs, "float32"), backward(inputs, 0.25, 0.25 * (1.0 + 1e-5))
    assert fits(wrong, expected)["query"].blamed == "factor"


@pytest.mark.parametrize("dtype", HALVES)
def test_a_scale_may_be_stored_in_the_working_dtype(dtype: str) -> None:
    """The rounding of the scale itself is found, is more than noise, and is allowed."""
    inputs = heads(dtype, 48)
    scale = float(torch.tensor(48**-0.5).to(DTYPES[dtype]))
    expected = exact(inputs, dtype)
    fitted = fits(backward(inputs, scale), expected)["query"].factor
    scaling = expected["query"].scaling
    assert fitted is not None
    assert scaling is not None
    allowed = scaling.scale_rounding + scaling.common_rounding
    assert abs(fitted.scale_error) <= fitted.scale_allowed
    assert fitted.scale_allowed > allowed > 2.0**-13


def test_one_key_that_all_rows_share_blames_no_scale() -> None:
    """Pre-scaling rounds a key that all rows attend: one rounding moves everything, and is allowed.

    Were errors independent but for rows and columns, and the scale exact, it would be blamed.
    """
    margins, without = [], []
    for seed in range(6):
        query, key, value, gradient = heads("bfloat16", 64, 100, seed)
        query[..., 0] += 4.0
        key[:, :, 0] = 0.0
        key[:, :, 0, 0] = 10.0 + seed / 8.0
        operands = [query, key, value, gradient]
        scaled = [(64.0**-0.25 * tensor.float()).bfloat16() for tensor in (query, key)]
        expected = exact(operands, "bfloat16")["value"]
        error = backward([*scaled, value, gradient], 1.0)["value"].double() - expected.value
        margins.append(_margin(gradient_fit(error, expected)))
        scaling = expected.scaling
        assert scaling is not None
        independent = replace(scaling, noise=lambda _: 0.0, scale_rounding=0.0)
        without.append(_margin(gradient_fit(error, scaled_by(expected, independent))))
    assert max(margins) <= 1.0 < max(without)


def scaled_by(gradient: Gradient, scaling: Scaling | None) -> Gradient:
    """A gradient on which an error of the logit scale has another effect."""
    return replace(gradient, derive=lambda: replace(gradient.statistics, scaling=scaling))


def _margin(fitted: GradientFit | None) -> float:
    """The larger fitted scale error over what is allowed."""
    assert fitted is not None
    return max(abs(each.scale_error) / each.scale_allowed for each in fitted.fits.values())


@pytest.mark.parametrize("reason", ["narrow", "few rows", "no statistics"])
def test_no_statistic_without_many_like_errors(reason: str) -> None:
    """Narrow heads, few rows and gradients without a statistical bound have no fit."""
    size = 15 if reason == "narrow" else 16
    length = 15 if reason == "few rows" else 16
    inputs = heads("float32", size, length)
    expected = exact(inputs, "float32")["query"]
    if reason == "no statistics":
        assert gradient_fit(torch.zeros_like(expected.value), expected) is not None
        expected = scaled_by(expected, None)
    assert gradient_fit(torch.zeros_like(expected.value), expected) is None


def test_tokens_that_nothing_depends_on_do_not_count() -> None:
    """Padding has zero gradients, which would water down the mean of the others' squares."""
    inputs = heads("bfloat16")
    mask = torch.zeros(1, 1, 1, 64, dtype=torch.float64)
    mask[..., 40:] = -torch.inf
    attention = golden.attend(*inputs[:3], bias=mask)
    expected = core_gradients(attention, inputs[3], contract("bfloat16", 0.25))["key"]
    fitted = gradient_fit(expected.scale, expected)
    assert fitted is not None
    assert fitted.counted == 2 * 2 * 40 * 16
    assert fitted.rms == pytest.approx(1.0)


def test_errors_of_ten_times_the_typical_size_blame_no_scale() -> None:
    """Independent errors that are far too large fail by their size and not by a scale."""
    expected = exact(heads("float32"), "float32")["key"]
    fitted = gradient_fit(10.0 * expected.scale * normal(2, 2, 64, 16), expected)
    assert fitted is not None
    assert fitted.unexplained > 9.0
    assert fitted.blamed == ""


def test_the_sum_of_gradients_has_the_sum_of_their_slopes() -> None:
    """A tensor that is query, key and value at once errs along all three."""
    inputs = heads("float32")
    parts = exact(inputs, "float32")
    total = add_gradients([parts[name] for name in ROLES], contract("float32", 0.25))
    summed = sum(backward(inputs, 0.2525)[name].double() for name in ROLES)
    fitted = gradient_fit(summed - total.value, total)
    assert fitted is not None
    assert fitted.blamed == "scale"
    unknown = scaled_by(parts["key"], None)
    assert add_gradients([parts["query"], unknown], contract("float32", 0.25)).scaling is None


def _total(gradient: Gradient) -> Tensor:
    assert gradient.scaling is not None
    return gradient.scaling.direct + gradient.scaling.indirect


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_slopes_of_a_core_are_derivatives_by_the_scale(softcap: float | None) -> None:
    """They agree with a central difference, with shared heads, a bias and a mask."""
    query, gradient = normal(2, 4, 9, 5), normal(2, 4, 9, 5, seed=1)
    key, value = normal(2, 2, 11, 5, seed=2), normal(2, 2, 11, 5, seed=3)
    bias = normal(2, 4, 9, 11, seed=4)
    bias[..., -2:] = -torch.inf

    def derivatives(factor: float) -> dict[str, Gradient]:
        scale = 0.3 * factor
        attention = golden.attend(query, key, value, bias=bias, scale=scale, softcap=softcap)
        return core_gradients(attention, gradient, contract("float32", scale), num_kv_heads=2)

    _check_difference(derivatives(1.0), derivatives(1.0 + STEP), derivatives(1.0 - STEP), ROLES)


def test_slopes_of_a_layer_are_derivatives_by_the_scale() -> None:
    """They agree with a central difference for all inputs and matrices."""
    tokens = [normal(2, 9, 12), normal(2, 11, 12, seed=1), normal(2, 11, 12, seed=2)]
    weights = golden.ProjectionWeights(
        q=normal(20, 12, seed=3) / 3.0,
        k=normal(10, 12, seed=4) / 3.0,
        v=normal(10, 12, seed=5),
        o=normal(12, 20, seed=6),
        q_bias=normal(20, seed=7),
        k_bias=normal(10, seed=8),
        o_bias=normal(12, seed=9),
    )

    def derivatives(factor: float) -> dict[str, Gradient]:
        scale = 0.4 * factor
        layer = golden.multi_head_attention(
            *tokens, weights, num_heads=4, num_kv_heads=2, scale=scale
        )
        return layer_gradients(layer, normal(2, 9, 12, seed=10), contract("float32", scale))

    names = (*ROLES, "q", "k", "v", "o", "q_bias")
    _check_difference(derivatives(1.0), derivatives(1.0 + STEP), derivatives(1.0 - STEP), names)
    assert derivatives(1.0)["o_bias"].scaling is None


def _check_difference(
    here: dict[str, Gradient],
    above: dict[str, Gradient],
    below: dict[str, Gradient],
    names: tuple[str, ...],
) -> None:
    for name in names:
        difference = (above[name].value - below[name].value) / (2.0 * STEP)
        error = (difference - _total(here[name])).abs().max()
        assert float(error) < 1e-7 * float(difference.abs().max()), name


OPERANDS = ("query", "key", "value", "output_gradient")


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_noise_is_the_derivative_of_the_sum(operand: str, softcap: float | None) -> None:
    """Where a single operand element errs, the noise is what that does to the sum."""
    operands = dict(zip(OPERANDS, (normal(1, 2, 6, 5, seed=n) for n in range(4)), strict=True))
    factors = [normal(1, 2, 6, 5, seed=n) for n in range(5, 9)]
    weights = WeightedSum(query=factors[0], key=factors[1], value=factors[2], output=factors[3])
    place, deviation = (0, 1, 2, 3), 1e-4
    variance = torch.zeros(1, 2, 6, 5, dtype=torch.float64)
    variance[place] = deviation**2

    def total(step: float) -> float:
        moved = {name: tensor.clone() for name, tensor in operands.items()}
        moved[operand][place] += step
        attention = golden.attend(
            *(moved[name] for name in OPERANDS[:3]), scale=0.5, softcap=softcap
        )
        own = backward_pass(attention, moved["output_gradient"])
        results = (own.query, own.key, own.value, attention.output)
        return sum(float((each * by).sum()) for each, by in zip(results, factors, strict=True))

    spread = _only(operands, operand, variance, softcap)
    expected = abs(total(STEP) - total(-STEP)) / (2.0 * STEP) * deviation
    assert noise(weights, spread) == pytest.approx(expected, rel=1e-6)


def _only(
    operands: dict[str, Tensor], operand: str, variance: Tensor, softcap: float | None
) -> Propagation:
    """Everything exact but for what one operand carries."""
    attention = golden.attend(
        *(operands[name] for name in OPERANDS[:3]), scale=0.5, softcap=softcap
    )
    own = backward_pass(attention, operands["output_gradient"])
    nothing = Contract(
        unit_roundoff=0.0,
        underflow=0.0,
        accumulator_roundoff=0.0,
        accumulator_underflow=0.0,
        pre_scaling_roundings=0,
    )
    return propagation(own, nothing, Carried(**{operand: variance}), 1.0)
