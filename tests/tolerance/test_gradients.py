"""The golden gradients of the core, and what their bounds promise."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from golden_problems import Case, points
from gradient_problems import (
    attend,
    contract,
    core_cases,
    differentiable,
    is_judged,
    output_gradient,
    semantics,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from conformance._golden import golden
from conformance.tolerance import Contract, add_gradients, core_gradients
from conformance.tolerance.backward_pass import has_gradient_bounds
from conformance.tolerance.gradient import Gradient
from conformance.tolerance.statistical_gradients import propagation

PARTS = ("worst", "bound", "scale")


def heads(seed: int = 0, lengths: tuple[int, int] = (5, 7), num_kv_heads: int = 2) -> list[Tensor]:
    """Query, key and value ``[2, 4 or Hkv, L, 3 or 2]``."""
    queries, keys = lengths
    shapes = [(2, 4, queries, 3), (2, num_kv_heads, keys, 3), (2, num_kv_heads, keys, 2)]
    return [output_gradient(torch.Size(shape), seed + i) for i, shape in enumerate(shapes)]


def judged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Contract | None = None,
    factor: float = 1.0,
    **options: object,
) -> dict[str, Gradient]:
    """The gradients for a fixed output gradient times a factor."""
    attention = golden.attend(query, key, value, **options)
    gradient = output_gradient(attention.output.shape, 9) * factor
    allowed = contract("float32") if allowed is None else allowed
    return core_gradients(attention, gradient, allowed, num_kv_heads=key.shape[1])


@given(core_cases(), points())
def test_the_value_is_what_autograd_finds(case: Case, point: object) -> None:
    """At every point that is supported, within the float64 bound of two such computations."""
    chosen = semantics(point)
    assume(has_gradient_bounds(chosen))
    names = dict(zip(("query", "key", "value"), case.inputs, strict=True))
    learned = dict(case.learned_at(chosen))
    if not chosen.alibi:
        learned.pop("alibi_slopes", None)
    case = dataclasses.replace(case, learned=learned)
    bias = {n: t for n, t in case.tensors.items() if n == "bias"}
    leaves = differentiable(names | learned | bias)
    masks = {**case.keywords_at(chosen), "learned": {name: leaves[name] for name in learned}}
    masks |= {name: leaves[name] for name in bias}
    inputs = [leaves[name] for name in names]
    attention = golden.attend(*inputs, **masks, semantics=chosen)
    with torch.no_grad():
        evaluated = attend(case, chosen)
    assume(is_judged(evaluated))
    gradient = output_gradient(attention.output.shape, case.shape.seed)
    by_autograd = torch.autograd.grad(
        attention.output, list(leaves.values()), gradient, allow_unused=True
    )
    heads_of_keys = case.inputs[1].shape[1]
    bounded = core_gradients(evaluated, gradient, contract(), num_kv_heads=heads_of_keys)
    # A flag may replace the bias.
    counted = leaves.keys() - (set() if evaluated.bias is not None else {"bias"})
    assert bounded.keys() == counted
    for name, theirs in zip(leaves, by_autograd, strict=True):
        if name not in counted:
            assert theirs is None
            continue
        exact = torch.zeros_like(leaves[name]) if theirs is None else theirs
        assert bounded[name].value.shape == exact.shape
        assert bool(((bounded[name].value - exact).abs() <= bounded[name].worst).all()), name


@given(core_cases(), points(), st.sampled_from(["float32", "bfloat16", "float16"]), st.booleans())
def test_bounds_are_finite_and_positive(case: Case, point: object, dtype: str, eager: bool) -> None:  # noqa: FBT001
    """Whatever the point, each part is finite and not negative, and the smaller bound judges."""
    chosen = semantics(point)
    assume(has_gradient_bounds(chosen))
    attention = attend(case, chosen)
    assume(is_judged(attention))
    gradient = output_gradient(attention.output.shape, case.shape.seed)
    allowed = contract(dtype, attention.scale, eager=eager)
    for bounded in core_gradients(attention, gradient, allowed).values():
        for part in PARTS:
            each = getattr(bounded, part)
            assert each.shape == bounded.value.shape
            assert bool((each >= 0.0).all())
            assert bool(each.isfinite().all())
        assert torch.equal(bounded.allowed(generic=False), bounded.worst)
        assert torch.equal(
            bounded.allowed(generic=True), torch.minimum(bounded.worst, bounded.bound)
        )


@pytest.mark.parametrize(
    "changes", [{"softmax_axis": "query"}, {"mask_operation": "multiply-weights"}]
)
def test_an_unsupported_point_is_refused_by_name(changes: dict[str, str]) -> None:
    """Where the weights of a query need not sum to one there is no bound, and the error says so."""
    point = golden.Semantics(**changes)
    assert not has_gradient_bounds(point)
    with pytest.raises(ValueError, match=next(iter(changes.values()))):
        judged(*heads(), semantics=point)


def test_rows_that_answer_nan_are_refused() -> None:
    """A row without a key that answers NaN has no gradient to compare with."""
    point = golden.Semantics(empty_rows="nan")
    keep = torch.tensor([False, True, True, True, True]).view(1, 1, 5, 1)
    with pytest.raises(ValueError, match="empty_rows='nan'"):
        judged(*heads(), keep=keep, semantics=point)


def test_an_output_gradient_of_another_shape_is_refused() -> None:
    """The message names the argument and both shapes."""
    attention = golden.attend(*heads())
    with pytest.raises(ValueError, match=r"output_gradient has shape \[2, 4, 5, 3\]"):
        core_gradients(attention, torch.ones(2, 4, 5, 3), contract(), num_kv_heads=2)


def test_rows_without_a_key_have_no_gradient() -> None:
    """A query that attends nothing gets a zero gradient and gives none, within underflow."""
    keep = torch.tensor([False, True, True, True, True]).view(1, 1, 5, 1)
    bounded = judged(*heads(), keep=keep)
    assert not bool(bounded["query"].value[:, :, 0].any())
    assert float(bounded["query"].worst[:, :, 0].max()) < torch.finfo(torch.float32).tiny * 1e3


def test_junk_at_dead_keys_changes_nothing() -> None:
    """Values and bounds are the same bits when a key that no query sees holds NaN."""
    query, key, value = heads()
    keep = torch.tensor([True] * 6 + [False]).view(1, 1, 1, 7)
    clean = judged(query, key, value, keep=keep)
    key[:, :, -1], value[:, :, -1] = math.nan, math.inf
    dirty = judged(query, key, value, keep=keep)
    for name, bounded in clean.items():
        for part in ("value", *PARTS):
            assert torch.equal(getattr(bounded, part), getattr(dirty[name], part)), (name, part)


@pytest.mark.parametrize("order", ["repeat", "tile"])
def test_a_group_adds_up_its_heads(order: str) -> None:
    """The gradient of a shared head is the sum over the query heads that read it."""
    query, key, value = heads()
    point = golden.Semantics(group_order=order)
    grouped = judged(query, key, value, semantics=point)
    alone = judged(
        *(query, golden.repeat_heads(key, 4, point), golden.repeat_heads(value, 4, point))
    )
    readers = {"repeat": [[0, 1], [2, 3]], "tile": [[0, 2], [1, 3]]}[order]
    for name in ("key", "value"):
        for head, members in enumerate(readers):
            total = alone[name].value[:, members].sum(dim=1)
            assert torch.equal(grouped[name].value[:, head], total)
            least = alone[name].worst[:, members].amax(dim=1)
            assert bool((grouped[name].worst[:, head] >= least).all())


@pytest.mark.parametrize("eager", [False, True])
def test_bounds_grow_with_the_unit_roundoff(eager: bool) -> None:  # noqa: FBT001
    """A coarser dtype has a larger bound at every element."""
    query, key, value = heads()
    names = ("float64", "float32", "float16", "bfloat16")
    by_dtype = [judged(query, key, value, contract(name, eager=eager)) for name in names]
    for finer, coarser in pairwise(by_dtype):
        for name in finer:
            for part in PARTS:
                assert bool((getattr(finer[name], part) < getattr(coarser[name], part)).all())


@pytest.mark.parametrize("exponent", [-12, 5, 20])
def test_a_scaled_output_gradient_scales_the_bounds(exponent: int) -> None:
    """Multiplying it by a power of two multiplies values and bounds by it, but for underflow."""
    without = replace(contract("float32"), underflow=0.0, accumulator_underflow=0.0)
    factor = 2.0**exponent
    plain, scaled = judged(*heads(), without), judged(*heads(), without, factor=factor)
    for name, bounded in plain.items():
        for part in ("value", *PARTS):
            assert torch.equal(getattr(bounded, part) * factor, getattr(scaled[name], part))


def test_permuted_keys_permute_the_bounds() -> None:
    """The order of keys moves the gradients of key and value, and leaves that of the query."""
    query, key, value = heads()
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    plain, moved = judged(query, key, value), judged(query, key[:, :, order], value[:, :, order])
    # Two orders of a sum in float64: a variance that cancels, and its root, lose half the digits.
    noise = 2.0**-26
    for part in PARTS:
        for name in ("key", "value"):
            wanted = getattr(plain[name], part)[:, :, order]
            assert bool(((getattr(moved[name], part) - wanted).abs() <= noise * wanted).all())
        wanted = getattr(plain["query"], part)
        assert bool(((getattr(moved["query"], part) - wanted).abs() <= noise * wanted).all())


def test_one_key_has_the_gradient_of_a_copy() -> None:
    """With one key the weights are one: dV sums the output gradient, dQ and dK are errors alone."""
    query, key, value = heads(lengths=(5, 1), num_kv_heads=4)
    bounded = judged(query, key, value)
    attention = golden.attend(query, key, value)
    total = output_gradient(attention.output.shape, 9).sum(dim=-2, keepdim=True)
    assert bool(((bounded["value"].value - total).abs() <= bounded["value"].worst).all())
    assert not bool(bounded["query"].value.any())
    assert not bool(bounded["key"].value.any())


def test_an_exact_contract_leaves_no_error() -> None:
    """Without any rounding no bound exceeds what evaluating it in float64 may lose."""
    exact = Contract(
        unit_roundoff=0.0,
        underflow=0.0,
        accumulator_roundoff=0.0,
        accumulator_underflow=0.0,
    )
    noise = judged(*heads(), contract("float64"))
    for name, bounded in judged(*heads(), exact).items():
        assert bool((bounded.worst <= noise[name].worst).all())
        assert bool((bounded.bound <= noise[name].bound).all())


def test_statistics_are_derived_once_when_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take most of the time, and where inputs are not independent nobody asks for them."""
    derived = []

    def counted(*arguments: object) -> object:
        derived.append(1)
        return propagation(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("conformance.tolerance.gradients.propagation", counted)
    gradients = judged(*heads())
    total = add_gradients([gradients["key"], gradients["key"]], contract("float32"))
    assert bool((total.allowed(generic=False) > 0.0).all())
    assert not derived
    assert bool((total.allowed(generic=True) > 0.0).all())
    assert bool((gradients["query"].bound > 0.0).all())
    assert derived == [1]


def test_added_gradients_round_once_more() -> None:
    """The sum has the summed values, and a bound above the summed bounds by a rounding each."""
    parts = list(judged(*heads(num_kv_heads=4, lengths=(7, 7))).values())[:2]
    total = add_gradients(parts, contract("float32"))
    assert torch.equal(total.value, parts[0].value + parts[1].value)
    for name in PARTS:
        assert bool((getattr(total, name) > sum(getattr(each, name) for each in parts)).all())
    with pytest.raises(ValueError, match="gradients is empty"):
        add_gradients([], contract("float32"))


def test_a_bias_of_minus_infinity_under_a_late_cap_is_exact() -> None:
    """The cap makes it a number that stays live: no bound is infinite or not a number for it."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 4, 3, generator=generator, dtype=torch.float64)
    bias = torch.zeros(1, 1, 4, 4).masked_fill(torch.eye(4, dtype=torch.bool), -torch.inf)
    late = golden.STANDARD.replace(softcap_order="after-mask")
    attention = golden.attend(query, key, value, bias=bias, softcap=0.5, semantics=late)
    for bounded in core_gradients(attention, query, contract()).values():
        for part in PARTS:
            assert bool(getattr(bounded, part).isfinite().all())


def test_no_queries_leave_gradients_of_zero() -> None:
    """Without queries nothing flows back, and no more may than underflow."""
    lost = 8.0 * torch.finfo(torch.float32).tiny
    for bounded in judged(*heads(lengths=(0, 7))).values():
        assert not bool(bounded.value.any())
        assert bool((bounded.worst <= lost).all())
