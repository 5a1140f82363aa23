from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from double_double_problems import (
    FAMILIES,
    MASKS,
    excesses,
    family_case,
    truths,
    with_exact_scale,
)
from golden_problems import Shape, core_case, points, shapes
from hypothesis import assume, given
from torch import Generator, Tensor

from conformance.oracle.double_double import core_output, supports
from reference import STANDARD, Attention, Semantics, attend

# Learned factors are products that double-double takes as exact.
PLAIN = shapes().map(lambda shape: shape.changed(learned=""))


def heads(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = Generator().manual_seed(length)
    shape = (1, 2, length, 4)
    query, key, value = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    return query, key, value


def assert_near_exact(case: Any, point: Semantics = STANDARD) -> None:
    """Require of each element the error that the operations may make, and a proper pair."""
    case, attention = with_exact_scale(case, point)
    output = core_output(attention)
    assert_proper_pairs(*output)
    assert max(excesses(case, point, output)) <= 1.0


def assert_proper_pairs(high: Tensor, low: Tensor) -> None:
    """``high`` is the sum of both, rounded: ``low`` is at most half a unit in its last place."""
    assert torch.equal((high + low).nan_to_num(), high.nan_to_num())
    above = torch.nextafter(high.abs(), torch.tensor(math.inf, dtype=torch.float64))
    assert bool((low.abs() <= (above - high.abs()) / 2).logical_or(high.isnan()).all())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_hard_problems_are_solved_to_double_double(family: str, mask: str) -> None:
    """Each family under each mask is off by no more than double-double operations may be."""
    assert_near_exact(family_case(family, **MASKS[mask]))


@pytest.mark.parametrize("rule", ["zeros", "nan", "mean-of-all", "mean-of-valid"])
def test_empty_rows_follow_their_rule(rule: Any) -> None:
    """Rows without a key give zeros, NaN, or a mean to all the bits."""
    point = STANDARD.replace(empty_rows=rule)
    for seed in range(5):
        case = family_case("normal", seed=seed, keep_axes=(True, False, True, True), causal=True)
        case.tensors["keep"][:, :, 1] = False
        assert bool(case.golden(point).empty.any())
        assert_near_exact(case, point)


POINTS: tuple[dict[str, Any], ...] = (
    {"bias_order": "before-scale"},
    {"mask_operation": "add"},
    {"mask_fill": -1e4},
    {"mask_fill": -2.0},
    {"mask_operation": "add", "mask_fill": -3.0},
    {"softcap_order": "after-mask"},
    {"softcap_order": "after-mask", "bias_order": "before-scale"},
    {"scale": "none"},
    {"scale": -0.7, "scale_factor": 1.01},
    {"group_order": "tile"},
)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("changes", POINTS, ids=str)
def test_each_supported_choice_is_honoured(changes: dict[str, Any], softcap: float | None) -> None:
    """Fills, orders and scales other than the standard ones, where mask and bias show them."""
    point = STANDARD.replace(**changes)
    masks = {"keep_axes": (True,) * 4, "bias_axes": (True,) * 4, "softcap": softcap}
    assert_near_exact(family_case("normal", seed=5, **masks), point)


def test_mean_of_valid_leaves_out_junk() -> None:
    """A row without a key averages what causality admits; NaN beyond it changes nothing."""
    point = STANDARD.replace(empty_rows="mean-of-valid")
    case = family_case("normal", keep_axes=(True, False, True, True), causal=True)
    case.tensors["keep"][..., -1] = False
    case.tensors["keep"][:, :, 0] = False
    clean = core_output(case.golden(point))
    case.inputs[2][..., -1, :] = math.nan
    dirty = core_output(case.golden(point))
    assert bool(torch.isfinite(clean[0]).all())
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


@pytest.mark.parametrize("keys", [0, 1])
def test_few_keys(keys: int) -> None:
    """One key gives its value exactly; none gives zeros."""
    query, key, value = heads(3)
    key, value = key[..., :keys, :], value[..., :keys, :]
    high, low = core_output(attend(query, key, value))
    wanted = value.expand(1, 2, 3, 4) if keys else torch.zeros(1, 2, 3, 4).double()
    assert torch.equal(high, wanted)
    assert not bool(low.any())


@given(PLAIN, points())
def test_any_supported_point_is_solved_to_double_double(shape: Shape, point: Semantics) -> None:
    """Any geometry, masks and choices that are supported."""
    assume(supports(point))
    assert_near_exact(core_case(shape), point)


@given(PLAIN)
def test_high_is_the_rounded_answer(shape: Shape) -> None:
    """``high`` is the exact answer rounded to float64, up to a unit in the last place."""
    case, attention = with_exact_scale(core_case(shape), STANDARD)
    high, _ = core_output(attention)
    for output, truth in zip(high.flatten().tolist(), truths(case, STANDARD), strict=True):
        rounded = float(truth.value)
        assert abs(output - rounded) <= math.ulp(rounded) + truth.allowed


def test_junk_at_unread_keys_changes_nothing() -> None:
    """NaN and infinity in keys and values that no query attends leave every bit as it was."""
    case = family_case("normal", keep_axes=(False, False, False, True), seed=3)
    case.tensors["keep"][..., 2] = False
    clean = core_output(case.golden(STANDARD))
    query, key, value = case.inputs
    key, value = key.clone(), value.clone()
    key[:, :, 2], value[:, :, 2] = math.nan, math.inf
    dirty = core_output(dataclasses.replace(case, inputs=(query, key, value)).golden(STANDARD))
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


@pytest.mark.parametrize("exponent", [-900, 900])
def test_values_of_any_magnitude_keep_their_bits(exponent: int) -> None:
    """Tiny and huge values give the same bits as ordinary ones, since powers of two are exact."""
    query, key, value = heads(5)
    ordinary = core_output(attend(query, key, value))
    stretched = core_output(attend(query, key, value * 2.0**exponent))
    for plain, scaled in zip(ordinary, stretched, strict=True):
        assert torch.equal(plain * 2.0**exponent, scaled)


def test_values_at_the_end_of_the_range_are_right_to_the_last_subnormal() -> None:
    """Values of 1e-300 leave an error that is as small as float64 can say."""
    case = family_case("normal")
    query, key, value = case.inputs
    tiny = dataclasses.replace(case, inputs=(query, key, value * 2.0**-1000))
    high, low = core_output(case.golden(STANDARD))
    output = core_output(tiny.golden(STANDARD))
    assert torch.equal(output[0], high * 2.0**-1000)
    assert float((output[1] - low * 2.0**-1000).abs().max()) <= 2.0**-1074


def test_what_is_not_finite_is_the_golden_answer() -> None:
    """An attended infinity, and scores that overflow, give the golden output and a zero."""
    query, key, value = heads(3)
    value[..., 1, 0] = math.inf
    attention = attend(query, key, value)
    high, low = core_output(attention)
    assert torch.equal(high[..., 0], attention.output[..., 0])
    assert bool(low[..., 0].eq(0).all())
    assert bool(low[..., 1].ne(0).any())
    enormous = attend(query * 1e200, key * 1e200, value)
    assert not bool(core_output(enormous)[0].isfinite().any())


UNSUPPORTED = (
    {"softmax_axis": "query"},
    {"softmax_axis": "none"},
    {"mask_operation": "multiply-weights"},
    {"mask_operation": "ignore"},
    {"softcap_order": "after-mask", "mask_fill": -1e4},
)


@pytest.mark.parametrize("changes", UNSUPPORTED, ids=str)
def test_unsupported_points_are_refused(changes: dict[str, Any]) -> None:
    """A point that is not evaluated says so instead of giving another point's answer."""
    point = STANDARD.replace(**changes)
    query, _, _ = heads(3)
    assert not supports(point)
    with pytest.raises(ValueError, match="not evaluated in double-double"):
        core_output(attend(query, query, query, semantics=point))


def test_gradients_are_left_out() -> None:
    """Inputs that ask for gradients give the same pair, without a graph."""
    query, key, value = heads(3)
    attention: Attention = attend(query.requires_grad_(), key, value)
    high, low = core_output(attention)
    assert not high.requires_grad
    assert not low.requires_grad


@pytest.mark.parametrize("scale", [1e17, 1e19, 1e22, 1e28])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_logits_of_any_size_leave_the_largest_its_weight(length: int, scale: float) -> None:
    """Past 746 * 2^53 the low part of a logit is a large exponent itself: it is subtracted, too."""
    query, key, value = heads(length)
    attention = attend(query, key, value, scale=scale)
    high, low = core_output(attention)
    winner = attention.logits.argmax(dim=-1, keepdim=True).expand(high.shape)
    assert torch.equal(high, value.gather(-2, winner))
    assert not low.any()
