"""The golden gradients of the layer, and what their bounds promise."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
from golden_problems import Case, Shape, layer_case, points
from gradient_problems import (
    contract,
    differentiable,
    is_judged,
    layer_cases,
    output_gradient,
    semantics,
)
from hypothesis import assume, given, settings
from torch import Tensor

from conformance._golden import golden
from conformance.tolerance import Contract, core_gradients, layer_gradients
from conformance.tolerance.backward_pass import has_gradient_bounds
from conformance.tolerance.gradient import Gradient

PARTS = ("worst", "bound", "scale")
INPUTS = ("query", "key", "value")


def named(case: Case) -> dict[str, Tensor]:
    """Inputs and weights by the names that their gradients have."""
    assert case.weights is not None
    fields = dataclasses.fields(golden.ProjectionWeights)
    weights = {field.name: getattr(case.weights, field.name) for field in fields}
    inputs = dict(zip(INPUTS, case.inputs, strict=True))
    return inputs | {name: tensor for name, tensor in weights.items() if tensor is not None}


def evaluate(
    case: Case, tensors: dict[str, Tensor], point: golden.Semantics
) -> golden.MultiHeadAttention:
    """The golden layer on these tensors."""
    weights = {name: tensor for name, tensor in tensors.items() if name not in INPUTS}
    return golden.multi_head_attention(
        *[tensors[name] for name in INPUTS],
        golden.ProjectionWeights(**weights),
        num_heads=case.shape.num_heads,
        num_kv_heads=case.shape.kv_heads,
        semantics=point,
        **case.keywords_at(point),
    )


def judged(
    case: Case,
    point: golden.Semantics = golden.STANDARD,
    allowed: Contract | None = None,
    factor: float = 1.0,
) -> dict[str, Gradient]:
    """The gradients for an output gradient of the case's seed, times a factor."""
    tensors = named(case)
    layer = evaluate(case, tensors, point)
    return layer_gradients(
        layer,
        output_gradient(layer.output.shape, case.shape.seed) * factor,
        contract("float32") if allowed is None else allowed,
    )


@given(layer_cases(), points())
def test_the_value_is_what_autograd_finds(case: Case, point: object) -> None:
    """At every point that is supported, within the float64 bound of two such computations."""
    chosen = semantics(point)
    assume(has_gradient_bounds(chosen) and not chosen.null_key)
    leaves = differentiable(named(case))
    layer = evaluate(case, leaves, chosen)
    assume(is_judged(layer.core))
    gradient = output_gradient(layer.output.shape, case.shape.seed)
    by_autograd = torch.autograd.grad(
        layer.output, list(leaves.values()), gradient, allow_unused=True
    )
    bounded = judged(case, chosen, contract())
    for name, theirs in zip(leaves, by_autograd, strict=True):
        if theirs is None:  # a bias that takes no part, or a query that nothing depends on
            assert name not in bounded or not bool(bounded[name].value.any())
            continue
        assert bounded[name].value.shape == theirs.shape
        assert bool(((bounded[name].value - theirs).abs() <= bounded[name].worst).all()), name


@settings(max_examples=60)
@given(layer_cases(), points())
def test_bounds_are_finite_and_positive(case: Case, point: object) -> None:
    """Whatever the point, each part is finite, not negative, and has the gradient's shape."""
    chosen = semantics(point)
    assume(has_gradient_bounds(chosen) and not chosen.null_key)
    assume(is_judged(evaluate(case, named(case), chosen).core))
    for bounded in judged(case, chosen).values():
        for part in PARTS:
            each = getattr(bounded, part)
            assert each.shape == bounded.value.shape
            assert bool((each >= 0.0).all())
            assert bool(each.isfinite().all())


def test_results_are_named_after_what_they_belong_to() -> None:
    """Every input, matrix and bias that takes part has one, and nothing else."""
    case = layer_case(Shape(seed=1))
    biases = {f"{name}_bias" for name in "qkvo"}
    assert judged(case).keys() == {*INPUTS, *"qkvo", *biases}
    without = golden.Semantics(key_bias=False, output_bias=False)
    assert judged(case, without).keys() == {*INPUTS, *"qkvo", "q_bias", "v_bias"}


def test_a_key_bias_has_no_gradient() -> None:
    """Softmax does not see it: the gradient is zero up to float64, its bound is not."""
    key_bias = judged(layer_case(Shape(seed=3)))["k_bias"]
    assert bool((key_bias.value.abs() <= key_bias.worst * 2.0**-20).all())
    assert bool((key_bias.bound > 0.0).all())


def test_reinterpreted_heads_are_judged_by_the_worst_case() -> None:
    """Where rows of a head are not tokens there is no statistical bound."""
    for bounded in judged(
        layer_case(Shape(seed=4)), golden.Semantics(head_split="reinterpret")
    ).values():
        assert torch.equal(bounded.bound, bounded.worst)


def test_a_softmax_over_queries_is_refused() -> None:
    """The message names the field that rules a bound out."""
    with pytest.raises(ValueError, match="softmax_axis='query'"):
        judged(layer_case(Shape()), golden.Semantics(softmax_axis="query"))


def test_an_output_gradient_of_another_shape_is_refused() -> None:
    """The message names the argument and both shapes."""
    case = layer_case(Shape())
    tensors = named(case)
    with pytest.raises(ValueError, match=r"output_gradient has shape \[1\], not the output's"):
        layer_gradients(evaluate(case, tensors, golden.STANDARD), torch.ones(1), contract())


@pytest.mark.parametrize("eager", [False, True])
def test_bounds_grow_with_the_unit_roundoff(eager: bool) -> None:  # noqa: FBT001
    """A coarser dtype has a larger bound at every element."""
    case = layer_case(Shape(seed=5))
    names: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    by_dtype = [judged(case, allowed=contract(name, eager=eager)) for name in names]
    for finer, coarser in pairwise(by_dtype):
        for name in finer:
            for part in PARTS:
                assert bool((getattr(finer[name], part) < getattr(coarser[name], part)).all())


def test_a_scaled_output_gradient_scales_the_bounds() -> None:
    """Multiplying it by a power of two multiplies values and bounds by it, but for underflow."""
    changes: dict[str, Any] = {"underflow": 0.0, "accumulator_underflow": 0.0}
    without = dataclasses.replace(contract("float32"), **changes)
    case = layer_case(Shape(seed=6))
    plain, scaled = judged(case, allowed=without), judged(case, allowed=without, factor=64.0)
    for name, bounded in plain.items():
        for part in ("value", *PARTS):
            assert torch.equal(getattr(bounded, part) * 64.0, getattr(scaled[name], part)), name


def test_matrices_that_only_move_make_no_error_of_their_own() -> None:
    """Signed permutations without biases: the bound of the input is that of its heads, moved."""
    shape = Shape(
        seed=7, group=1, head_size=2, value_head_size=2, query_size=4, key_size=4, value_size=4
    )
    case = layer_case(shape.changed(output_size=4, projection_biases=False))
    order = torch.tensor([2, 0, 3, 1])
    moved = torch.eye(4, dtype=torch.float64)[order] * torch.tensor([1.0, -1.0, 2.0, 0.5])
    matrices = golden.ProjectionWeights(q=moved, k=moved, v=moved, o=moved)
    exact = dataclasses.replace(case, weights=matrices)
    core = evaluate(exact, named(exact), golden.STANDARD).core
    gradient = output_gradient(torch.Size((2, 3, 4)), shape.seed) @ moved
    heads = golden.split_heads(gradient, 2)
    of_heads = core_gradients(core, heads, contract("float32"))
    bounded = judged(exact)
    for name in INPUTS:
        wanted = golden.merge_heads(of_heads[name].worst) @ moved.abs()
        # Sums in float64, in another order, and an underflow more.
        distance = (bounded[name].worst - wanted).abs()
        assert bool((distance <= wanted * 2.0**-40 + torch.finfo(torch.float32).tiny).all())
