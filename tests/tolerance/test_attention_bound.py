"""Properties of the bound of attention proper."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tolerance_inputs import FAMILIES, MASKS, contract, make, waves
from torch import Generator, Tensor

from conformance._golden import golden
from conformance.tolerance import core_bound, model
from conformance.tolerance.spread import Carried
from conformance.tolerance.visible_keys import extremes, live_keys

SIZE = (2, 2, 7, 9, 4)


def differ_by(actual: Tensor, expected: Tensor) -> float:
    """The largest relative difference."""
    relative = (actual - expected).abs() / expected
    return float(relative.max()) if relative.numel() else 0.0


# From the prototype that the formulas were first validated with (63,102 legitimate runs without a
# false alarm): an independent program for the same derivation, evaluated on `waves`.
FROZEN = (
    ("float32", "eager", False, (3.21225e-06, 2.49288e-06, 2.49064e-06)),
    ("bfloat16", "eager", False, (0.0228979, 0.012177, 0.0228845)),
    ("bfloat16", "fused", False, (0.0165727, 0.0114885, 0.014597)),
    ("float16", "fused", False, (0.00200382, 0.00138792, 0.00172427)),
    ("float32", "eager", True, (3.46322e-06, 2.59851e-06, 2.61259e-06)),
    ("bfloat16", "eager", True, (0.0288559, 0.0127477, 0.0284116)),
    ("bfloat16", "fused", True, (0.0171905, 0.0115293, 0.0149975)),
    ("float16", "fused", True, (0.00206931, 0.00139257, 0.00176855)),
)


@pytest.mark.parametrize(("dtype", "scores", "biased", "values"), FROZEN)
def test_the_bound_is_that_of_the_prototype(
    dtype: str,
    scores: str,
    values: tuple[float, float, float],
    *,
    biased: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing is masked or capped, two independent programs agree within one percent."""
    # The prototype knew of no partial sums that are stored.
    monkeypatch.setattr(model, "PARTIAL_STORES", 0)
    attention = golden.attend(
        3 * waves(1, 2, 3, 4, pace=1.1),
        3 * waves(1, 2, 5, 4, pace=1.3),
        waves(1, 2, 5, 4, pace=1.7),
        bias=waves(1, 2, 3, 5, pace=0.7) if biased else None,
    )
    # The prototype knew of no shares of partial results.
    declared = replace(contract(dtype, attention.scale, scores=scores), merge_roundings=0.0)
    bound = core_bound(attention, declared)
    samples = [float(bound[0, 0, 0, 0]), float(bound[0, 1, 2, 3]), float(bound.mean())]
    assert samples == pytest.approx(values, rel=0.01)


@pytest.mark.parametrize("logit", [1.0, 1e4, 1e8, 1e30])
def test_a_row_with_one_key_has_only_roundings(logit: float) -> None:
    """One live key has weight 1 however large its logit and whatever the other rows see."""
    inputs = make("normal", SIZE, "none")
    only = torch.full((2, 2, 7, 9), -torch.inf)
    only[:, :, torch.arange(7), torch.arange(7)] = 0.0
    query = torch.full_like(inputs.query, math.sqrt(logit))
    key = torch.full_like(inputs.key, -math.sqrt(logit))
    attention = replace(inputs, query=query, key=key, bias=only).golden()
    bound = core_bound(attention, contract())
    roundings = 2 * (9 + 1 + model.SUM_ROUNDINGS) + model.DIVISION_ROUNDINGS + 1
    largest = roundings * 2.0**-24 * attention.output.abs()
    assert bool((bound <= 1.01 * largest + 1e-9).all())


@pytest.mark.parametrize("logit", [1e8, 1e15, 1e30])
def test_the_values_cap_the_bound_where_logits_saturate(logit: float) -> None:
    """With logits no format resolves the answer is among the values, or up to their sum."""
    inputs = make("normal", SIZE, "random")
    size = math.sqrt(logit)
    attention = replace(inputs, query=inputs.query * size, key=inputs.key * size).golden()
    bound = core_bound(attention, contract(accumulate="float32"))
    width = inputs.value.amax() - inputs.value.amin()
    lse = (9 - 1) * inputs.value.abs().amax()
    assert bool((bound <= 1.001 * (width + lse)).all())


@pytest.mark.parametrize("far", [-1.2e4, -4e4, -1e9, -1e30])
def test_weights_from_a_rounded_log_sum_exp_are_within_the_bound(far: float) -> None:
    """Each of n equal weights is one where float32 has no number between lse and the largest."""
    inputs = make("normal", SIZE, "none")
    biased = replace(inputs, bias=torch.full((2, 2, 7, 9), far))
    logits = inputs.query @ inputs.key.mT * inputs.query.shape[-1] ** -0.5 + far
    answer = (logits - logits.logsumexp(-1, keepdim=True)).exp() @ inputs.value
    attention = biased.golden()
    error = (answer.double() - attention.output).abs()
    bound = core_bound(attention, contract())
    assert bool((error <= bound).all())
    zeros = (attention.output.abs() > bound).double().mean()
    assert (float(zeros) > 0.5) == (far > -1e9)  # rows taken for rows without keys are still seen


def test_junk_in_dead_keys_does_not_inflate_the_bound() -> None:
    """Keys and values that no query attends may hold anything, also not a number."""
    inputs = make("normal", SIZE, "none")
    bias = torch.zeros(2, 1, 7, 9)
    bias[..., 6:] = -torch.inf
    inputs = replace(inputs, bias=bias)
    expected = core_bound(inputs.golden(), contract())
    for junk in (1e30, -torch.inf, torch.nan):
        key, value = inputs.key.clone(), inputs.value.clone()
        key[:, :, 6:], value[:, :, 6:] = junk, junk
        errors = Carried(key=key.double().abs() * 0, value=value.double().abs() * 0)
        attention = replace(inputs, key=key, value=value).golden()
        assert torch.equal(core_bound(attention, contract()), expected)
        assert torch.equal(core_bound(attention, contract(), errors), expected)


@pytest.mark.parametrize("rule", ["zeros", "nan", "mean-of-all", "mean-of-valid"])
@pytest.mark.parametrize("all_empty", [False, True])
def test_empty_rows_have_a_bound_of_roundings(rule: str, *, all_empty: bool) -> None:
    """Zeros are exact but for underflow, a mean is rounded like one; other rows are untouched."""
    inputs = make("normal", SIZE, "none")
    keep = torch.ones(2, 1, 7, 9, dtype=torch.bool)
    keep[:, :, 0 : 7 if all_empty else 3] = False
    arguments = (inputs.query, inputs.key, inputs.value)
    semantics = golden.STANDARD.replace(empty_rows=rule)
    attention = golden.attend(*arguments, keep=keep, semantics=semantics)
    bound = core_bound(attention, contract())
    full = core_bound(golden.attend(*arguments), contract())
    empty = attention.empty
    assert bool(torch.isfinite(bound).all())
    assert differ_by(bound[~empty], full[~empty]) < 1e-9
    if rule.startswith("mean"):
        mean = inputs.value.double().abs().mean(dim=2, keepdim=True).expand_as(bound)
        assert bool((bound[empty] > 2.0**-24 * mean[empty]).all())
        assert bool((bound[empty] < 64 * 2.0**-24 * mean[empty]).all())
    else:
        assert float(bound[empty].max()) < 1e-35


def test_a_float32_mean_of_all_values_is_within_the_bound() -> None:
    """What a finite fill gives on a row without keys does not leave the bound of the mean."""
    inputs = make("offset values", (2, 2, 3, 257, 8), "none")
    semantics = golden.STANDARD.replace(empty_rows="mean-of-all")
    keep = torch.zeros(2, 1, 3, 257, dtype=torch.bool)
    attention = golden.attend(
        inputs.query, inputs.key, inputs.value, keep=keep, semantics=semantics
    )
    weights = torch.softmax(torch.full(keep.shape, -1e9), dim=-1)
    error = (weights @ inputs.value).double() - attention.output
    assert bool((error.abs() <= core_bound(attention, contract())).all())


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
def test_nothing_to_compute_has_no_error(shape: tuple[int, int, int, int]) -> None:
    """No items, no queries or no keys give an empty or a zero bound."""
    batch, heads, queries, keys = shape
    attention = golden.attend(
        torch.ones(batch, heads, queries, 4),
        torch.ones(batch, heads, keys, 4),
        torch.ones(batch, heads, keys, 5),
    )
    bound = core_bound(attention, contract())
    assert bound.shape == (batch, heads, queries, 5)
    assert float(bound.sum()) == 0.0


@given(
    sizes=st.tuples(*[st.integers(0, 3)] * 2, *[st.integers(0, 9)] * 2, st.integers(1, 5)),
    logit=st.sampled_from([0.0, 1e-30, 1.0, 1e3, 1e8, 1e15, 1e30]),
    size=st.sampled_from([0.0, 1e-40, 1.0, 1e30]),
    softcap=st.sampled_from([None, 1e-3, 20.0]),
    kept=st.sampled_from([0.0, 0.2, 0.8, 1.0]),
    biased=st.booleans(),
    changes=st.fixed_dictionaries(
        {},
        optional={
            "empty_rows": st.sampled_from(["zeros", "nan", "mean-of-all", "mean-of-valid"]),
            "softmax_axis": st.sampled_from(["key", "query", "head", "batch", "none"]),
            "mask_operation": st.sampled_from(
                ["replace", "add", "add-to-kept", "multiply-logits", "multiply-weights", "ignore"]
            ),
            "mask_fill": st.sampled_from([-math.inf, -1e9, -1e4, 0.0]),
            "bias_order": st.sampled_from(["after-scale", "before-scale"]),
            "softcap_order": st.sampled_from(["before-mask", "after-mask"]),
        },
    ),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
    errors=st.booleans(),
    seed=st.integers(0, 99),
)
@example(
    sizes=(1, 1, 2, 3, 1),
    logit=1e30,
    size=1.0,
    softcap=None,
    kept=0.2,
    biased=True,
    changes={"empty_rows": "nan"},
    dtype="bfloat16",
    errors=True,
    seed=0,
)
def test_the_bound_is_a_finite_number_everywhere(
    sizes: tuple[int, int, int, int, int],
    logit: float,
    size: float,
    softcap: float | None,
    kept: float,
    changes: dict[str, Any],
    *,
    dtype: str,
    seed: int,
    biased: bool,
    errors: bool,
) -> None:
    """No mask, rule, magnitude, format or point of the semantics gives NaN, infinity or less."""
    batch, heads, queries, keys, width = sizes
    heads = max(heads, 1)
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    shape = (batch, heads, queries, keys)
    attention = golden.attend(
        normal(batch, heads, queries, width) * math.sqrt(logit),
        normal(batch, heads, keys, width) * math.sqrt(logit),
        normal(batch, heads, keys, width) * size,
        keep=torch.rand(shape, generator=generator) < kept if kept < 1 else None,
        bias=normal(*shape) if biased else None,
        softcap=softcap,
        semantics=golden.STANDARD.replace(**changes),
    )
    names = ("query", "key", "value") if errors else ()
    carried = Carried(**{name: getattr(attention, name).abs() * 2.0**-8 for name in names})
    bound = core_bound(attention, contract(dtype), carried)
    assert bound.shape == attention.output.shape
    assert bool(torch.isfinite(bound).all())
    assert bool((bound >= 0).all())


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("relative", [1e-6, 1e-2])
def test_the_errors_of_the_heads_are_carried_through(
    relative: float, mask: str, softcap: float | None
) -> None:
    """Heads anywhere within their own error keep the exact answer within the bound."""
    inputs = replace(make("offset keys", SIZE, mask), softcap=softcap)
    attention = inputs.golden()
    generator = Generator().manual_seed(5)
    errors = {
        name: relative * torch.rand(getattr(inputs, name).shape, generator=generator).double()
        for name in ("query", "key", "value")
    }
    bound = core_bound(attention, contract(), Carried(**errors))
    for _ in range(10):
        signs = {k: torch.randn(e.shape, generator=generator).sign() for k, e in errors.items()}
        moved = {k: getattr(inputs, k).double() + signs[k] * e for k, e in errors.items()}
        error = (replace(inputs, **moved).golden().output - attention.output).abs()
        assert bool((error <= bound).all())


@pytest.mark.parametrize("family", ["normal", "logits to 30", "offset values", "positive"])
@pytest.mark.parametrize("roundoff", [2.0**-24, 2.0**-8])
def test_the_worst_errors_of_the_exponents_are_covered(family: str, roundoff: float) -> None:
    """Exponents off by their whole error, each in the direction that moves an output most."""
    inputs = make(family, SIZE, "none")
    attention = inputs.golden()
    precision = contract("float32")
    precision = replace(precision, unit_roundoff=roundoff, accumulator_roundoff=roundoff)
    bound = core_bound(attention, precision)
    # Every implementation may err this much in an exponent: exp and the rounding of the logits.
    size = roundoff * (precision.exp_error + 4 * attention.logits.abs())
    for channel in range(4):
        value = attention.value[..., channel].unsqueeze(-2)
        away = (value - attention.output[..., channel].unsqueeze(-1)).sign()
        weights = torch.softmax(attention.logits + away * size, dim=-1)
        error = ((weights @ attention.value) - attention.output).abs()
        assert bool((error <= bound)[..., channel].all())


@pytest.mark.parametrize(
    "changes",
    [
        {"softmax_axis": "query"},
        {"softmax_axis": "head"},
        {"softmax_axis": "batch"},
        {"softmax_axis": "none"},
        {"mask_operation": "multiply-weights"},
        {"mask_operation": "replace", "mask_fill": -1e4},
        {"mask_operation": "multiply-logits"},
        {"softcap_order": "after-mask"},
        {"bias_order": "before-scale"},
    ],
)
@pytest.mark.parametrize("family", ["normal", "logits to 30", "offset values", "positive"])
def test_other_points_of_the_semantics_have_a_bound(family: str, changes: dict[str, Any]) -> None:
    """The golden's own formulas in float32 are within the bound at every declared point."""
    inputs = make(family, SIZE, "bias")
    keep = torch.rand(2, 1, 7, 9, generator=Generator().manual_seed(2)) < 0.7
    semantics = golden.STANDARD.replace(**changes)
    attention = golden.attend(
        inputs.query,
        inputs.key,
        inputs.value,
        keep=keep,
        bias=inputs.bias,
        softcap=20.0 if "softcap_order" in changes else None,
        semantics=semantics,
    )
    logits = attention.logits.float()
    if changes.get("softmax_axis") == "none":
        weights = torch.where(torch.isneginf(logits), 0.0, logits)
    else:
        axis = ("batch", "head", "query", "key").index(semantics.softmax_axis)
        weights = torch.nan_to_num(torch.softmax(logits, dim=axis))
    if semantics.mask_operation == "multiply-weights":
        weights = weights * keep
    error = (weights @ inputs.value).double() - attention.output
    bound = core_bound(attention, contract(scale=attention.scale))
    assert bool((error.abs() <= bound).all())
    assert float((error.abs() / bound).max()) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_float64_candidates_are_within_twice_the_bound(family: str) -> None:
    """A float64 computation in another order agrees with the golden within both their errors."""
    inputs = make(family, (1, 2, 9, 65, 8), "bias")
    attention = inputs.golden()
    order = torch.arange(64, -1, -1)
    logits = (inputs.query.double() * inputs.scale) @ inputs.key.double().transpose(-1, -2)
    assert inputs.bias is not None
    weights = torch.softmax((logits + inputs.bias.double())[..., order], dim=-1)
    error = (weights @ inputs.value.double()[:, :, order] - attention.output).abs()
    assert bool((error <= core_bound(attention, contract("float64", inputs.scale))).all())


def test_chunks_change_nothing_and_the_limit_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks the range of seen values is the same; past the limit it can only widen."""
    attention = make("normal", SIZE, "random").golden()
    live = live_keys(attention)
    rows = torch.ones(SIZE[:3], dtype=torch.bool)
    high, low = extremes(attention.value, live, rows)
    attended = attention.allowed.unsqueeze(-1)
    values = attention.value.unsqueeze(2).expand(*attended.shape[:-1], SIZE[4])
    assert torch.equal(high, values.masked_fill(~attended, -torch.inf).amax(dim=3).flatten(0, 2))
    assert torch.equal(low, values.masked_fill(~attended, torch.inf).amin(dim=3).flatten(0, 2))
    monkeypatch.setattr(model, "HULL_CHUNK", 1)
    chunked = extremes(attention.value, live, rows)
    assert torch.equal(chunked[0], high)
    assert torch.equal(chunked[1], low)
    monkeypatch.setattr(model, "HULL_LIMIT", 0)
    widened = extremes(attention.value, live, rows)
    assert bool((widened[0] >= high).all())
    assert bool((widened[1] <= low).all())
