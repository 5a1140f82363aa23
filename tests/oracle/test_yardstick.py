"""The sharpest measure of an answer that holds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from declared import CANDIDATES
from examples import core, layer, problem, run_clause
from torch import Tensor

from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.oracle.yardstick import Yardstick
from conformance.problems.inputs import Inputs
from conformance.problems.recipes import RECIPES

LARGE = {
    "query_length": 20,
    "key_length": 18,
    "head_size": 16,
    "value_head_size": 16,
    "query_size": 16,
    "key_size": 16,
    "value_size": 16,
    "output_size": 16,
}
EVERY_DTYPE = ["float32", "float64", "float16", "bfloat16"]
ULP = 2.0**-52

both_kinds = pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])


def measured(
    candidate: Candidate, dtype: str = "float32", **changes: object
) -> tuple[Subject, Inputs, Yardstick]:
    """A subject, its inputs and their yardstick on a problem large enough for statistics."""
    subject = Subject(candidate, dtype)
    inputs = subject.inputs(problem(dtype=dtype, **{**LARGE, **changes}))
    return subject, inputs, subject.yardstick(inputs)


def exactly(subject: Subject, inputs: Inputs) -> Tensor:
    """The yardstick's answer as one float64 tensor."""
    measure = subject.yardstick(inputs)
    return measure.output if measure.remainder is None else measure.output + measure.remainder


@both_kinds
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("values", ["normal", "plain-projections", "nearly-tied", "integers"])
def test_bound_is_never_above_the_worst_case(candidate: Candidate, dtype: str, values: str) -> None:
    """Whatever else is known, nothing is allowed that the worst-case bound forbids."""
    subject, inputs, measure = measured(candidate, dtype, values=values)
    assert bool((measure.bound <= subject.golden(inputs).bound).all())
    assert bool((measure.bound >= 0).all())


@both_kinds
def test_a_bound_may_be_written_to_and_differentiated_with(candidate: Candidate) -> None:
    """It is derived in torch's inference mode and is no tensor of that mode itself."""
    subject, inputs, _ = measured(candidate)
    bound = subject.golden(inputs).bound
    weights = torch.ones_like(bound, requires_grad=True)
    (weights * bound).sum().backward()
    assert weights.grad is not None
    assert torch.equal(bound.mul_(2.0), 2.0 * weights.grad)


@both_kinds
@pytest.mark.parametrize("values", RECIPES)
def test_only_independent_inputs_are_judged_statistically(
    candidate: Candidate, values: str
) -> None:
    """Without independence the bound is the worst case, all of it."""
    subject, inputs, measure = measured(candidate, values=values)
    worst = subject.golden(inputs).bound
    assert (measure.statistics is not None) == RECIPES[values].generic
    if measure.statistics is None:
        assert torch.equal(measure.bound, worst)
    elif values == "normal":
        assert float((measure.bound / worst).median()) < 0.7


@both_kinds
def test_changed_tokens_lose_the_statistical_bound(candidate: Candidate) -> None:
    """Tokens that somebody else made may be tied: they are judged by the worst case."""
    subject, inputs, measure = measured(candidate)
    assert measure.statistics is not None
    changed = subject.yardstick(inputs.with_tokens(key=inputs.key.clone()))
    assert changed.statistics is None
    assert torch.equal(changed.output, measure.output)


def test_own_weights_lose_the_statistical_bound() -> None:
    """A layer that brings its weights is judged by the worst case."""
    subject = Subject(CANDIDATES["fixed layer"], "float32")
    sizes = {"num_heads": 4, "query_size": 5, "key_size": 6, "value_size": 7, "output_size": 4}
    inputs = subject.inputs(problem(**{**LARGE, **sizes, "head_size": 3, "value_head_size": 2}))
    assert subject.yardstick(inputs).statistics is None


def test_unsupported_points_are_judged_by_the_worst_case() -> None:
    """Where weights do not sum to one over the keys there is no statistical model."""
    point = golden.STANDARD.replace(softmax_axis="query")
    subject, inputs, measure = measured(core(semantics=point))
    assert measure.statistics is None
    assert torch.equal(measure.bound, subject.golden(inputs).bound)


@both_kinds
def test_coarser_dtypes_need_no_remainder(candidate: Candidate) -> None:
    """The golden's float64 is exact enough for anything coarser."""
    for dtype in ("float32", "float16", "bfloat16"):
        subject, inputs, measure = measured(candidate, dtype)
        assert measure.remainder is None
        assert measure.output is subject.golden(inputs).output


@both_kinds
def test_float64_is_held_against_more_than_float64(candidate: Candidate) -> None:
    """The exact answer has a remainder below the last place; the golden errs by a few ulp."""
    subject, inputs, measure = measured(candidate, "float64")
    assert measure.remainder is not None
    largest = float(measure.output.abs().max())
    assert 0 < float(measure.remainder.abs().max()) <= ULP * largest
    apart = measure.error(subject.golden(inputs).output).abs()
    assert 0 < float(apart.max()) < 64 * ULP * largest
    assert torch.equal(measure.error(measure.output), -measure.remainder)


@both_kinds
def test_float64_is_judged_by_half_the_distance_of_two(candidate: Candidate) -> None:
    """Against the truth a candidate has its own errors alone, not the golden's as well."""
    subject, inputs, measure = measured(candidate, "float64", values="integers")
    assert measure.statistics is None
    assert torch.equal(measure.bound, subject.golden(inputs).bound / 2)


@both_kinds
def test_float64_sees_errors_that_the_golden_bound_allows(candidate: Candidate) -> None:
    """An error of some ulp, everywhere within the golden's bound, lies outside the yardstick's."""
    subject, inputs, measure = measured(candidate, "float64")
    loose = subject.golden(inputs)
    answer = exactly(subject, inputs) + 1.5 * measure.bound
    assert bool(((answer - loose.output).abs() < loose.bound).all())
    assert bool((measure.error(answer).abs() > measure.bound).all())
    ulps = 1.5 * measure.bound / (ULP * loose.output.abs().clamp_min(1e-3))
    assert float(ulps.median()) < 200


@both_kinds
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_fit_finds_an_answer_of_another_scale(candidate: Candidate, dtype: str) -> None:
    """A golden answer at a scale two percent larger is fitted as just that, in every dtype."""
    subject, inputs, measure = measured(candidate, dtype)
    scale = subject.golden(inputs).core.scale
    other = subject.oracle.output(inputs.replace(scale=scale * 1.02))
    fitted = measure.fit(other)
    assert fitted is not None
    assert fitted.scale_error == pytest.approx(0.02, rel=0.1)


@both_kinds
def test_exact_answers_fit_without_error(candidate: Candidate) -> None:
    """The exact answer has no error to be explained."""
    subject, inputs, measure = measured(candidate)
    fitted = measure.fit(exactly(subject, inputs))
    assert fitted is not None
    assert fitted.rms == fitted.scale_error == 0.0
    assert not fitted.blames_scale


def test_fit_needs_finite_answers_and_independent_inputs() -> None:
    """NaN cannot be explained by a scale, nor ties by a statistic."""
    subject, inputs, measure = measured(core())
    answer = exactly(subject, inputs).clone()
    answer[0, 0, 0, 0] = math.nan
    assert measure.fit(answer) is None
    subject, inputs, measure = measured(core(), values="tied-keys")
    assert measure.fit(exactly(subject, inputs)) is None


@pytest.mark.parametrize("slug", ["numerics.scale-error", "numerics.typical-error"])
def test_declared_nan_of_rows_without_keys_leaves_a_fit(slug: str) -> None:
    """An always causal core whose first rows are NaN is measured by its other rows."""

    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.mT / query.shape[-1] ** 0.5
        ahead = torch.ones(logits.shape[-2:]).tril(key.shape[2] - query.shape[2]) == 0
        return logits.masked_fill(ahead, -math.inf).softmax(-1) @ value

    lengths = {"query_length": 64, "key_length": 17}
    promises: dict[str, Any] = {"causal": "bottom-right", "empty_rows": "nan", "masks": []}
    made = core(causal, always_causal=True, features=[], geometry=lengths, **promises)
    result = run_clause(made, slug)
    assert (result.status, result.reason) == ("passed", "")


def test_rows_that_are_not_sampled_keep_the_worst_case() -> None:
    """In long problems the statistical bound speaks of some rows; the others keep theirs."""
    subject, inputs, measure = measured(core(), query_length=200, batch=1)
    assert measure.statistics is not None
    sampled = torch.zeros(200, dtype=torch.bool)
    sampled[measure.statistics.rows] = True
    assert 16 <= int(sampled.sum()) < 200
    worst = subject.golden(inputs).bound
    assert torch.equal(measure.bound[..., ~sampled, :], worst[..., ~sampled, :])
    assert bool((measure.bound[..., sampled, :] < worst[..., sampled, :]).any())


def test_empty_answers_have_a_yardstick() -> None:
    """No query, no statistic, and no crash."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem())
    none = inputs.with_tokens(query=inputs.query[:, :, :0])
    measure = subject.yardstick(dataclasses.replace(none, generic=True))
    assert measure.bound.numel() == 0
    assert measure.statistics is None


def test_yardsticks_are_remembered() -> None:
    """The same inputs are measured once."""
    subject, inputs, measure = measured(core())
    assert subject.yardstick(inputs) is measure
    assert subject.yardstick(inputs.replace()) is not measure
