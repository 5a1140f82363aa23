"""What only many elements together, or nearly tied logits, can show."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from examples import bare, core, layer, run_clause, try_on
from torch import Tensor

import conformance
from candidates.broken import MISTAKES
from candidates.broken.half_precision import FusedCore
from conformance.base.results import ClauseResult
from conformance.clauses.precision import AVERAGED, LIFTED, NEARLY_TIED, lifted_logits
from conformance.clauses.registry import Finding
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.problems.edges import edge_problems
from conformance.problems.problem import Problem

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
BY_NAME = {mistake.name: mistake.candidate for mistake in MISTAKES}
SLUGS = ("numerics.scale-error", "numerics.typical-error", "numerics.near-ties")
EVERY_DTYPE = ["float32", "float64", "float16", "bfloat16"]
HALVES = ["float16", "bfloat16"]


def plain(function: Any, **promises: Any) -> Candidate:
    """A core without masks and keywords."""
    return core(function, **{**PROMISES, **promises})


def scaled(factor: float) -> Candidate:
    """A core whose scale is off by a factor, and nothing else: the logits are not rounded more."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale = factor * query.shape[-1] ** -0.5
        return torch.softmax(query @ key.transpose(-1, -2) * scale, -1) @ value

    return plain(kernel)


def ran(candidate: Candidate, slug: str, dtype: str = "float32") -> ClauseResult:
    """One clause on as many examples as the quick profile has."""
    return run_clause(candidate, slug, examples=40, dtype=dtype)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])
def test_correct_candidates_pass_with_examples_that_bind(
    candidate: Candidate, dtype: str, slug: str
) -> None:
    """In every dtype each clause can tell, and accuses nobody who is right."""
    result = ran(candidate, slug, dtype)
    assert result.status == "passed", result.reason
    assert result.binding >= 1
    assert result.margin is not None
    assert result.margin < 1.0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("dtype", HALVES)
def test_fused_candidates_pass(dtype: str, slug: str) -> None:
    """A kernel that computes in float32 and rounds once keeps what "fused" promises."""
    candidate = core(FusedCore(), scores="fused")
    result = ran(candidate, slug, dtype)
    assert result.status == "passed", result.reason
    assert result.binding >= 1


@pytest.mark.parametrize(
    ("dtype", "error"),
    [
        ("float64", 1e-12),
        ("float64", -1e-13),
        ("float32", 1e-3),
        ("float32", -1e-4),
        ("float32", 3e-6),
        ("float16", 0.01),
        ("bfloat16", 0.05),
    ],
)
def test_scale_error_is_seen_and_measured(dtype: str, error: float) -> None:
    """A small error of the scale fails, and its size is reported within a tenth."""
    result = ran(scaled(1.0 + error), "numerics.scale-error", dtype)
    assert result.status == "failed"
    assert result.violation is not None
    assert result.violation.measured["scale_error"] == pytest.approx(error, rel=0.15)
    assert result.violation.measured["allowed"] < abs(error)
    assert "the logit scale has a relative error of" in result.reason


def test_scale_stored_in_the_working_dtype_is_allowed() -> None:
    """What the contract calls rounding of the scale is no scale error."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale = torch.tensor(query.shape[-1] ** -0.5).to(query.dtype)
        return torch.softmax(query @ key.transpose(-1, -2) * scale, -1) @ value

    for dtype in ("float32", "float16", "bfloat16"):
        assert ran(plain(kernel), "numerics.scale-error", dtype).status == "passed"


@pytest.mark.parametrize("name", ["LongRowsOfSeventeenBits", "WeightsInBfloat16", "SumInFloat16"])
def test_scale_is_not_blamed_for_other_errors(name: str) -> None:
    """Errors that a scale does not explain are those of another clause."""
    assert ran(BY_NAME[name], "numerics.scale-error").status == "passed"
    result = ran(BY_NAME[name], "numerics.typical-error")
    assert result.status == "failed"
    assert result.violation is not None
    assert result.violation.measured["unexplained"] > 1.0


def test_typical_error_is_not_blamed_for_the_scale() -> None:
    """What a wrong scale explains is taken off: one mistake, one clause of the two."""
    assert ran(scaled(1.0001), "numerics.typical-error").status == "passed"
    assert ran(scaled(1.0001), "numerics.scale-error").status == "failed"


def test_typical_error_sees_what_no_element_shows() -> None:
    """Seventeen bits pass element by element and fail together."""
    candidate = BY_NAME["LongRowsOfSeventeenBits"]
    assert ran(candidate, "numerics.golden").status == "passed"
    assert ran(candidate, "numerics.typical-error").status == "failed"


def test_scale_error_sees_what_no_element_shows() -> None:
    """A scale of twenty bits passes element by element and fails together."""
    candidate = BY_NAME["ScaleOfTwentyBits"]
    assert ran(candidate, "numerics.scale").status == "passed"
    assert ran(candidate, "numerics.scale-error").status == "failed"


def test_near_ties_show_short_scores() -> None:
    """Scores of eleven bits merge logits that float32 keeps apart."""
    result = ran(BY_NAME["ScoresOfElevenBits"], "numerics.near-ties")
    assert result.status == "failed"
    assert result.margin is not None
    assert result.margin > 5.0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("base", ["exp", "exp2"])
def test_a_query_may_take_the_scale_and_the_logarithm(dtype: str, base: str) -> None:
    """A fused kernel that multiplies its query by the scale (and log2(e)) first is right."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        factor = query.shape[-1] ** -0.5 * (math.log2(math.e) if base == "exp2" else 1.0)
        scores = (query * factor).float() @ key.float().mT
        shifted = scores - scores.amax(-1, keepdim=True)
        weights = torch.exp2(shifted) if base == "exp2" else torch.exp(shifted)
        mixed = weights.to(query.dtype).float() @ value.float()
        return (mixed / weights.sum(-1, keepdim=True)).to(query.dtype)

    fused = plain(kernel, scores="fused", dtypes=[dtype])
    for slug in (*SLUGS, "numerics.golden", "numerics.scale", "numerics.large-logits"):
        assert ran(fused, slug, dtype).status in ("passed", "not-applicable"), slug


def nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """An answer without a number."""
    return torch.full_like(bare(query, key, value), torch.nan)


@pytest.mark.parametrize("slug", SLUGS)
def test_answers_that_are_not_finite_fail(slug: str) -> None:
    """NaN cannot be fitted and is a violation of its own kind."""
    result = ran(plain(nothing), slug)
    assert result.status == "failed"
    assert result.violation is not None
    assert result.violation.kind == "finite"


def first(candidate: Candidate, slug: str) -> Finding:
    """The first edge of a clause's space."""
    space = NEARLY_TIED if slug == "numerics.near-ties" else AVERAGED
    return try_on(candidate, slug, edge_problems(candidate, space, dtype="float32")[0])


@pytest.mark.parametrize("slug", SLUGS)
def test_a_single_example_tells(slug: str) -> None:
    """Each space's first example binds already."""
    finding = first(core(), slug)
    assert finding.binding
    assert finding.violation is None


@pytest.mark.parametrize("slug", SLUGS[:2])
@pytest.mark.parametrize("alike", [False, True])
def test_own_weights_are_judged_together_unless_alike(slug: str, *, alike: bool) -> None:
    """Weights that are alike repeat one rounding: the clauses do not apply, with that reason."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    if alike:
        torch.nn.init.constant_(module.in_proj_weight, 0.1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attended: Tensor = module(query, key, value, need_weights=False)[0]
        return attended

    result = ran(fixed(attend, module), slug)
    assert result.status == ("not-applicable" if alike else "passed")
    if alike:
        assert (
            result.reason == "it brings weights that are alike: its errors may not be independent"
        )


def fixed(attend: Any, module: torch.nn.MultiheadAttention) -> Candidate:
    """A layer of four heads with the weights of a module."""
    q, k, v = module.in_proj_weight.detach().chunk(3)
    q_bias, k_bias, v_bias = module.in_proj_bias.detach().chunk(3)
    weights = conformance.ProjectionWeights(
        q=q,
        k=k,
        v=v,
        o=module.out_proj.weight.detach(),
        q_bias=q_bias,
        k_bias=k_bias,
        v_bias=v_bias,
        o_bias=module.out_proj.bias.detach(),
    )
    made: Candidate = conformance.fixed_layer(attend, weights, num_heads=4)
    return made


@pytest.mark.parametrize("slug", SLUGS[:2])
def test_other_normalisations_are_not_judged_together(slug: str) -> None:
    """Where weights do not sum to one over the keys there is no statistical model."""
    point = conformance.STANDARD.replace(softmax_axis="query")
    result = ran(plain(bare, semantics=point), slug)
    assert result.status == "not-applicable"


def test_what_the_precision_hides_does_not_apply() -> None:
    """Scores of wide heads that may be stored in bfloat16 cannot be distinguished: no verdict."""
    wide = plain(bare, geometry={"head_size": 1024}, dtypes=["bfloat16"])
    result = ran(wide, "numerics.near-ties", "bfloat16")
    assert result.status == "not-applicable"
    assert result.reason.startswith("at the declared precision no example could show it")
    assert result.examples > 0


@pytest.mark.parametrize("size", [1, 8, 20, 128])
@pytest.mark.parametrize("dtype", HALVES)
def test_pinned_heads_show_a_scale_one_percent_off(size: int, dtype: str) -> None:
    """Sizes that are only preferred give way to what a candidate pins."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query * 1.01, key, value)

    pinned = plain(kernel, geometry={"head_size": size}, dtypes=[dtype])
    assert ran(pinned, "numerics.scale-error", dtype).status == "failed"


def test_narrow_values_have_no_statistics() -> None:
    """Where a row has few channels the averages say nothing, and the reason is given."""
    narrow = plain(bare, geometry={"value_head_size": 2})
    for slug in ("numerics.scale-error", "numerics.typical-error"):
        result = ran(narrow, slug)
        assert result.status == "not-applicable"
        assert result.reason == "its geometry pins value_head_size below 16"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_lifted_logits_show_what_is_kept_in_half_precision(dtype: str) -> None:
    """Log-sum-exps, and a tanh, that half precision keeps; scores that are stored hide them."""
    for name in ("LogSumExpsInHalfPrecision", "CapInHalfPrecision", "CapApproximated"):
        subject = Subject(BY_NAME[name], dtype)
        findings = [lifted_logits(subject, each) for each in _lifted_problems(BY_NAME[name], dtype)]
        assert all(finding.binding for finding in findings)
        assert any(finding.violation is not None for finding in findings)
    promises = {**PROMISES, "dtypes": [dtype], "features": ["scale", "softcap"]}
    fused = core(FusedCore(), scores="fused", **promises)
    findings = [
        lifted_logits(Subject(fused, dtype), each) for each in _lifted_problems(fused, dtype)
    ]
    assert all(finding.violation is None and (finding.margin or 2.0) < 0.5 for finding in findings)
    stored = run_clause(core(FusedCore(), **promises), "numerics.lifted-logits", dtype=dtype)
    assert stored.status == "not-applicable"
    assert "declares stored scores" in stored.reason


def _lifted_problems(candidate: Candidate, dtype: str) -> list[Problem]:
    """With and without a cap."""
    (made,) = edge_problems(candidate, LIFTED, dtype=dtype, most=1)
    return [made.replace(seed=seed) for seed in (4, 5)]
