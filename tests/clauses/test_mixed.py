"""Several dtypes in one call: the declared rule, a refusal, or an exact answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import core, layer, problem, quickly
from torch import Tensor

from candidates.broken import MISTAKES
from candidates.legitimate import mixed as legitimate
from conformance.base.results import ClauseResult
from conformance.clauses.mixed import mixture
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate

INPUTS, UNDECLARED, MASKS = "mixed.inputs", "mixed.undeclared-inputs", "mixed.mask-dtype"
AUTOCAST = "mixed.autocast"
EVERY_DTYPE = ["float32", "float64", "float16", "bfloat16"]
BY_NAME: dict[str, Any] = {mistake.name: mistake.candidate for mistake in MISTAKES}


def ran(candidate: Candidate, slug: str, dtype: str = "float32") -> ClauseResult:
    """One clause on as many examples as the quick profile has."""
    return quickly(candidate, slug, dtype)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize(
    "candidate",
    [
        legitimate.several_dtypes_promoted,
        legitimate.cache_in_the_dtype_of_the_query,
        legitimate.cache_of_any_dtype_used_as_it_is,
        legitimate.one_dtype_only,
    ],
    ids=lambda candidate: str(candidate.name),
)
def test_every_rule_can_be_kept(candidate: Candidate, dtype: str) -> None:
    """Promotion, the query's dtype (rounded or not) and a refusal pass in every dtype."""
    result = ran(candidate, INPUTS, dtype)
    assert result.status == "passed", result.reason
    assert ran(candidate, UNDECLARED, dtype).status == "not-applicable"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PromotedAfterRounding", "give a wrong answer in float32"),
        ("AnswerNotPromoted", "expected float32"),
        ("CastThoughRefused", "declares mixed='refuse' but answers"),
        ("QueryCastToItsCache", "give a wrong answer in float32"),
    ],
)
def test_broken_rules_fail_and_are_said(name: str, said: str) -> None:
    """The message names the dtypes of the inputs, and what was expected of the answer."""
    result = ran(BY_NAME[name], INPUTS)
    assert result.status == "failed"
    assert said in result.reason
    assert "query float" in result.reason or "query bfloat16" in result.reason


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_undeclared_refusals_pass(dtype: str) -> None:
    """Torch refuses products of two dtypes, and that passes."""
    assert ran(core(), UNDECLARED, dtype).status == "passed"
    assert ran(layer(), UNDECLARED, dtype).status == "passed"


def test_undeclared_exact_answers_pass() -> None:
    """Who computes with the inputs as they are may do so without a word."""

    def wide(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query.double() @ key.double().mT / query.shape[-1] ** 0.5
        return (logits.softmax(-1) @ value.double()).to(query.dtype)

    promises: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
    for dtype in EVERY_DTYPE:
        result = ran(core(wide, scores="fused", **promises), UNDECLARED, dtype)
        assert result.status == "passed", result.reason


def test_one_tensor_has_one_dtype() -> None:
    """Self-attention and packed inputs cannot be of several dtypes."""
    result = ran(layer(inputs="self"), UNDECLARED)
    assert result.status == "not-applicable"
    assert "one tensor" in result.reason


def test_mixtures_have_digits_that_the_narrow_dtype_has_not() -> None:
    """A cast of what is wider loses something: else a silent cast could not be detected."""
    subject = Subject(core(), "bfloat16")
    inputs = mixture(subject, problem(dtype="bfloat16", seed=0))
    assert (inputs.key.dtype, inputs.query.dtype) == (torch.float32, torch.bfloat16)
    assert not torch.equal(inputs.key.bfloat16().float(), inputs.key)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_masks_may_be_refused_or_used(dtype: str) -> None:
    """A refusal passes, and so does a sum in the mask's own dtype."""
    assert ran(core(), MASKS, dtype).status == "passed"
    result = ran(legitimate.several_dtypes_promoted, MASKS, dtype)
    assert result.status == "passed", result.reason
    assert result.binding >= 1


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("MaskCastToHalf", "float16"),
        ("MaskCastToHalf", "bfloat16"),
        ("WideMaskCastToSingle", "float32"),
    ],
)
def test_masks_must_not_be_cast(name: str, dtype: str) -> None:
    """A mask that is rounded to the dtype of the query fails."""
    result = ran(BY_NAME[name], MASKS, dtype)
    assert result.status == "failed"
    assert "is not added with its own values" in result.reason


def test_nothing_is_wider_than_float64() -> None:
    """There is no mask to try in float64."""
    assert ran(core(), MASKS, "float64").status == "not-applicable"


@pytest.mark.parametrize(
    "candidate",
    [legitimate.eager_under_autocast, legitimate.autocast_switched_off],
    ids=lambda candidate: str(candidate.name),
)
def test_autocast_may_round_or_not(candidate: Candidate) -> None:
    """Products in half precision are within the bound, and so is whoever switches it off."""
    result = ran(candidate, AUTOCAST)
    assert result.status == "passed", result.reason
    assert result.binding >= 1


def test_autocast_is_judged_where_it_is_declared() -> None:
    """Undeclared it does not apply; in other dtypes than float32 it means nothing."""
    assert ran(core(), AUTOCAST).status == "not-applicable"
    result = ran(legitimate.eager_under_autocast, AUTOCAST, "float16")
    assert result.status == "not-applicable"
    assert "float32" in result.reason


def test_a_layer_under_autocast_passes() -> None:
    """Projections are rounded, too, and their errors are in the bound."""
    result = ran(layer(features=["autocast"], masks=[]), AUTOCAST)
    assert result.status == "passed", result.reason


@pytest.mark.parametrize("name", ["UnscaledUnderAutocast", "ValuesOfEightBitsUnderAutocast"])
def test_mistakes_of_a_path_for_autocast_fail(name: str) -> None:
    """They show under autocast and are said to."""
    result = ran(BY_NAME[name], AUTOCAST)
    assert result.status == "failed"
    assert "under autocast to" in result.reason
