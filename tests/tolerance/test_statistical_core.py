"""Properties of the statistical bound of attention proper."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tolerance_inputs import MASKS, contract, make, waves
from torch import Generator

from conformance._golden import golden
from conformance.tolerance import Contract, core_statistics, model
from conformance.tolerance.spread import Carried
from conformance.tolerance.statistical import restrict
from conformance.tolerance.statistical_core import core_spread
from conformance.tolerance.statistical_scores import (
    coherent_variance,
    exponent_variance,
    scale_slope,
)
from conformance.tolerance.visible_keys import live_keys

SIZE = (2, 2, 7, 9, 4)
DEVIATIONS = 7.0
RULES = ("zeros", "nan", "mean-of-all", "mean-of-valid")


def exact_contract() -> Contract:
    """A contract under which nothing rounds: what remains is what inputs carry."""
    return Contract(
        unit_roundoff=0.0,
        underflow=0.0,
        accumulator_roundoff=0.0,
        accumulator_underflow=0.0,
        pre_scaling_roundings=0,
    )


# From the prototype that the formulas were first validated with (63,102 legitimate runs without a
# false alarm): an independent program for the same model, evaluated on `waves`. Inputs carry one
# rounding each.
FROZEN = (
    ("float32", "fused", False, (1.89796e-06, 1.84923e-06, 1.50146e-06)),
    ("float32", "fused", True, (1.97959e-06, 1.98239e-06, 1.51042e-06)),
    ("bfloat16", "eager", False, (0.0361365, 0.0371308, 0.0272131)),
    ("bfloat16", "eager", True, (0.0364114, 0.0393146, 0.0283885)),
    ("bfloat16", "fused", False, (0.0330898, 0.034621, 0.0241493)),
    ("bfloat16", "fused", True, (0.0314871, 0.0348784, 0.0241374)),
    ("float16", "fused", False, (0.00373512, 0.00387696, 0.00277316)),
    ("float16", "fused", True, (0.00355715, 0.00390657, 0.00279102)),
)


@pytest.mark.parametrize(("dtype", "scores", "biased", "values"), FROZEN)
def test_the_bound_is_that_of_the_prototype(
    dtype: str,
    scores: str,
    values: tuple[float, float, float],
    monkeypatch: pytest.MonkeyPatch,
    *,
    biased: bool,
) -> None:
    """Where nothing is masked, capped or saturated, two independent programs agree to 0.1 %.

    The prototype knew of no shares of partial results, nor of stored ones.
    """
    monkeypatch.setattr(model, "PARTIAL_STORES", 0)
    query = 2 * waves(1, 2, 3, 4, pace=1.1)
    key, value = waves(1, 2, 5, 4, pace=1.3), waves(1, 2, 5, 4, pace=1.7)
    bias = waves(1, 2, 3, 5, pace=0.7) if biased else None
    attention = golden.attend(query, key, value, bias=bias)
    unit = model.UNIT_ROUNDOFF[dtype]
    carried = [(unit * tokens.double()).square() for tokens in (query, key, value)]
    spread, saturated = core_spread(
        attention,
        replace(contract(dtype, attention.scale, scores=scores), merge_roundings=0.0),
        DEVIATIONS,
        Carried(query=carried[0], key=carried[1], value=carried[2]),
    )
    bound = spread.bound(DEVIATIONS)
    samples = [float(bound[0, 0, 0, 0]), float(bound[0, 1, 2, 3]), float(bound.mean())]
    assert samples == pytest.approx(values, rel=1e-3)
    assert saturated == 0.0


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("family", ["normal", "logits to 30", "offset values", "offset keys"])
def test_the_bound_grows_with_the_unit_roundoff(family: str, mask: str) -> None:
    """Coarser numbers never get a smaller bound."""
    attention = make(family, SIZE, mask).golden()
    contracts = [contract(dtype) for dtype in ("float64", "float32", "float16", "bfloat16")]
    bounds = [core_statistics(attention, each).bound for each in contracts]
    for finer, coarser in pairwise(bounds):
        assert bool((finer <= coarser).all())


@pytest.mark.parametrize("mask", MASKS)
def test_the_bound_scales_with_the_values(mask: str) -> None:
    """Values times a power of two have a bound times that power: nothing absolute is in it."""
    inputs = make("normal", SIZE, mask)
    larger = replace(inputs, value=inputs.value * 2.0**12)
    small = core_statistics(inputs.golden(), contract())
    large = core_statistics(larger.golden(), contract())
    for name in ("bound", "scale", "slope"):
        torch.testing.assert_close(getattr(small, name) * 2.0**12, getattr(large, name))


@pytest.mark.parametrize("mask", MASKS)
def test_the_order_of_keys_does_not_matter(mask: str) -> None:
    """Keys, values and mask in another order have the same bound."""
    inputs = make("logits to 30", SIZE, mask)
    order = torch.randperm(SIZE[3], generator=Generator().manual_seed(0))
    bias = None if inputs.bias is None else inputs.bias[..., order]
    moved = replace(inputs, key=inputs.key[:, :, order], value=inputs.value[:, :, order], bias=bias)
    bound = core_statistics(moved.golden(), contract()).bound
    torch.testing.assert_close(bound, core_statistics(inputs.golden(), contract()).bound)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_rows_without_a_key_spoil_nothing(rule: str, dtype: str) -> None:
    """Under every rule all numbers are finite, and the other rows have their own bound."""
    inputs = make("normal", SIZE, "none")
    keep = torch.ones(1, 1, 7, 9, dtype=torch.bool)
    keep[:, :, 3] = False
    attention = golden.attend(
        inputs.query,
        inputs.key,
        inputs.value,
        keep=keep,
        scale=inputs.scale,
        semantics=golden.STANDARD.replace(empty_rows=rule),
    )
    statistics = core_statistics(attention, contract(dtype))
    full = core_statistics(inputs.golden(), contract(dtype))
    others = torch.arange(7) != 3
    for name in ("bound", "scale", "slope"):
        numbers = getattr(statistics, name)
        assert bool(numbers.isfinite().all()), name
        torch.testing.assert_close(numbers[:, :, others], getattr(full, name)[:, :, others])
    assert (float(statistics.bound[:, :, 3].max()) > 1e-20) == (rule.startswith("mean") or False)


def test_a_dead_key_does_not_count() -> None:
    """What no query sees may hold anything."""
    inputs = make("normal", SIZE, "none")
    keep = torch.ones(1, 1, 7, 9, dtype=torch.bool)
    keep[..., 8] = False
    junk = [inputs.key.clone(), inputs.value.clone()]
    for tokens in junk:
        tokens[:, :, 8] = 1e30
    clean = golden.attend(inputs.query, inputs.key, inputs.value, keep=keep)
    dirty = golden.attend(inputs.query, *junk, keep=keep)
    assert torch.equal(
        core_statistics(dirty, contract()).bound, core_statistics(clean, contract()).bound
    )


def test_a_row_with_one_key_errs_by_rounding_alone() -> None:
    """One live key has weight 1 whatever its logit: the bound is a few roundings of its value."""
    query, value = torch.full((1, 1, 1, 4), 1e4), waves(1, 1, 1, 4, pace=1.0)
    statistics = core_statistics(golden.attend(query, query, value), contract())
    relative = statistics.bound / (value.double().abs() * 2.0**-24)
    assert float(relative.max()) < 40.0
    assert statistics.saturated == 0.0


def test_no_bound_where_weights_do_not_sum_to_one() -> None:
    """A softmax along another axis is refused, and so are no keys' worth of NaN."""
    inputs = make("normal", SIZE, "none")
    semantics = golden.STANDARD.replace(softmax_axis="query")
    other = golden.attend(inputs.query, inputs.key, inputs.value, semantics=semantics)
    with pytest.raises(ValueError, match="sum to one"):
        core_statistics(other, contract())


@pytest.mark.parametrize("shape", [(2, 0, 5, 4), (0, 3, 5, 4), (2, 3, 0, 4)])
def test_nothing_to_judge_has_a_bound_of_zero(shape: tuple[int, int, int, int]) -> None:
    """Without queries, items or keys there is no error."""
    batch, queries, keys, width = shape
    query, key = torch.zeros(batch, 2, queries, width), torch.zeros(batch, 2, keys, width)
    statistics = core_statistics(golden.attend(query, key, key), contract())
    assert statistics.bound.shape == (batch, 2, queries, width)
    assert not bool(statistics.bound.any())


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_offset_keys_matter_under_a_softcap_only(softcap: float | None) -> None:
    """An error of the query moves all scores by what keys have in common, and softmax ignores it.

    A softcap does not: it bends the common part differently for each score.
    """
    inputs = make("normal", SIZE, "none")
    bounds = []
    for offset in (0.0, 64.0):
        key = inputs.key.double() + offset
        scores = inputs.scale * (inputs.query.double() @ key.transpose(-1, -2))
        attention = golden.attend(inputs.query, key, inputs.value, softcap=softcap)
        # Far from saturation in both cases, so that only the shift differs.
        attention = replace(attention, scores=0.01 * scores / scores.abs().max())
        carried = Carried(query=torch.full_like(attention.query, 1e-12))
        weights = torch.softmax(inputs.golden().logits, dim=-1)
        attention = replace(
            attention,
            weights=weights,
            output=weights @ inputs.value.double(),
            logits=weights.log(),
        )
        bounds.append(core_spread(attention, exact_contract(), DEVIATIONS, carried)[0].variance)
    ratio = float((bounds[1] / bounds[0]).median())
    assert ratio == pytest.approx(1.0, rel=1e-6) if softcap is None else ratio > 100.0


@pytest.mark.parametrize("table", [0, 2**20])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mask", MASKS)
def test_the_coherent_error_is_the_derivative(
    mask: str, softcap: float | None, table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the sum over query channels of variance times squared derivative."""
    monkeypatch.setattr(model, "SMALL_TABLE", table)
    monkeypatch.setattr(model, "COHERENT_CHUNK", 2 * 2 * 9 * 4 * 3)
    inputs = replace(make("normal", SIZE, mask), softcap=softcap)
    attention = inputs.golden()
    live = live_keys(attention)
    variance = torch.rand(attention.query.shape, generator=Generator().manual_seed(3)).double()
    centre = live.mean(attention.value)
    slope = None
    if softcap is not None:
        slope = 1.0 - (attention.capped / softcap).square()
    coherent = coherent_variance(
        attention,
        live,
        exact_contract(),
        slope,
        variance,
        (attention.value - centre, attention.output - centre),
    )
    expected = torch.zeros_like(attention.output)
    for channel in range(SIZE[4]):
        step = torch.zeros_like(attention.query)
        step[..., channel] = 1e-4
        ends = [
            replace(inputs, query=inputs.query.double() + sign * step).golden().output
            for sign in (1.0, -1.0)
        ]
        derivative = (ends[0] - ends[1]) / 2e-4
        expected += variance[..., channel : channel + 1] * derivative.square()
    assert coherent is not None
    torch.testing.assert_close(coherent, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mask", MASKS)
def test_the_slope_is_the_derivative_by_the_logarithm_of_the_scale(
    mask: str, softcap: float | None
) -> None:
    """Two evaluations at scales a little off give the same slope; a bias is not scaled."""
    inputs = replace(make("normal", SIZE, mask), softcap=softcap)
    attention = inputs.golden()
    ends = [replace(inputs, scale=inputs.scale * (1.0 + step)).golden() for step in (1e-5, -1e-5)]
    expected = (ends[0].output - ends[1].output) / 2e-5
    slope = scale_slope(attention, attention.value, attention.output)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)


def test_the_slope_of_a_long_problem_is_that_of_its_rows() -> None:
    """Sampling leaves rows out and changes no other."""
    attention = make("normal", (1, 2, 150, 9, 4), "causal").golden()
    statistics = core_statistics(attention, contract())
    chosen = restrict(attention, statistics.rows)
    assert statistics.bound.shape == (1, 2, 64, 4)
    torch.testing.assert_close(statistics.slope, scale_slope(chosen, chosen.value, chosen.output))


def test_saturated_weights_are_counted() -> None:
    """Logits of a thousand in bfloat16 may select any key; ordinary ones in float32 do not."""
    query, key, value = (
        torch.randn(1, 1, 32, 8, generator=Generator().manual_seed(i)) for i in range(3)
    )
    wild = golden.attend(30 * query, 30 * key, value)
    assert core_statistics(wild, contract("bfloat16", scores="eager")).saturated > 0.05
    assert core_statistics(golden.attend(query, key, value), contract()).saturated == 0.0


def test_an_error_of_the_weights_stays_within_the_hull() -> None:
    """Weights that may be anything move the answer among the values, not beyond."""
    query, key, value = (
        torch.randn(1, 1, 32, 8, generator=Generator().manual_seed(i)) for i in range(3)
    )
    attention = golden.attend(1e4 * query, 1e4 * key, value)
    spread, saturated = core_spread(attention, contract("bfloat16"), DEVIATIONS)
    hull = (value.amax() - value.amin()).double()
    others = 2.0**-8 * hull * DEVIATIONS
    assert saturated > 0.0
    assert bool((spread.variance.sqrt() * DEVIATIONS <= hull + others).all())


def test_a_bounded_error_is_no_fraction_of_a_deviation() -> None:
    """What a projection mixes counts with the hull as its deviation, other errors as before."""
    query, key, value = (
        torch.randn(1, 1, 32, 8, generator=Generator().manual_seed(i)) for i in range(3)
    )
    for factor, ratio in ((1.0, 1.0), (300.0, DEVIATIONS)):
        attention = golden.attend(factor * query, factor * key, value)
        alone, _ = core_spread(attention, contract("bfloat16"), DEVIATIONS)
        mixed, _ = core_spread(attention, contract("bfloat16"), DEVIATIONS, mixed=True)
        largest = float((mixed.variance / alone.variance).sqrt().max())
        assert largest == pytest.approx(ratio, rel=0.05)


def test_a_finite_fill_is_as_exact_as_its_distance_to_the_largest_logit() -> None:
    """A hidden key whose logit is a given number carries the rounding of that distance alone."""
    hidden = torch.tensor([False, False, True]).expand(1, 1, 1, 3)
    point = golden.STANDARD.replace(mask_operation="replace", mask_fill=-2.0)
    heads = (waves(1, 1, length, 4, pace=pace) for length, pace in ((2, 1.1), (3, 1.3), (3, 1.7)))
    attention = golden.attend(*heads, keep=~hidden, semantics=point)
    declared, live = contract("float32", attention.scale), live_keys(attention)
    variance, _ = exponent_variance(attention, live, declared, 1.0)
    unit = declared.accumulator_roundoff
    distance = -2.0 - attention.logits.amax(dim=-1)
    exponent = (model.EXPONENT_ROUNDINGS * unit * distance).square()
    rescaling = ((declared.exp_error + model.RESCALE_ROUNDINGS) * unit) ** 2
    assert torch.allclose(variance[..., 2], exponent + rescaling, rtol=1e-12, atol=0.0)
