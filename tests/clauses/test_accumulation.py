"""Long sums: what is lost by an accumulator of half precision, and what is not accused."""

from __future__ import annotations

import pytest
import torch
from examples import core, layer, quickly
from torch import Tensor

from candidates.broken.half_precision import FusedCore
from candidates.broken.long_sums import added_up_in_parts
from candidates.eager import EagerCore
from conformance.base.results import ClauseResult
from conformance.clauses.numerics import LONG
from conformance.declare.candidate import Candidate
from conformance.problems.edges import edge_problems

SLUG = "numerics.accumulation"
EVERY_DTYPE = ["float32", "float64", "float16", "bfloat16"]
HALVES = ["float16", "bfloat16"]


def ran(candidate: Candidate, dtype: str) -> ClauseResult:
    """The clause on as many examples as the quick profile has."""
    return quickly(candidate, SLUG, dtype)


class SumsInParts(FusedCore):
    """Adds up so many weighted values at a time in a format."""

    def __init__(self, working: torch.dtype, at_once: int) -> None:
        super().__init__()
        self.working, self.at_once = working, at_once

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        """The weighted sum, rounded in between."""
        return added_up_in_parts(weights, value, self.working, self.at_once)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("candidate", [core(), layer()], ids=["core", "layer"])
def test_correct_candidates_pass_with_examples_that_bind(candidate: Candidate, dtype: str) -> None:
    """In every dtype some sums can tell, and torch's own pass."""
    result = ran(candidate, dtype)
    assert result.status == "passed", result.reason
    assert result.binding >= 1


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("at_once", [1, 4, 16])
def test_half_precision_accumulators_fail(dtype: str, at_once: int) -> None:
    """Whether rounded after each key or after the 16 of a matrix instruction."""
    candidate = core(SumsInParts(getattr(torch, dtype), at_once), scores="fused")
    assert ran(candidate, dtype).status == "failed"


@pytest.mark.parametrize("at_once", [1, 1025])
def test_declared_accumulators_pass(at_once: int) -> None:
    """One key after the other or all at once, float32 is what half precision promises."""
    candidate = core(SumsInParts(torch.float32, at_once), scores="fused")
    assert ran(candidate, "bfloat16").status == "passed"


def test_native_accumulators_are_not_judged_where_nothing_could_show() -> None:
    """Who declares to add up in bfloat16 has a bound that no sum of a thousand terms exceeds."""
    candidate = core(SumsInParts(torch.bfloat16, 1), accumulate="native")
    assert ran(candidate, "bfloat16").status == "not-applicable"


def test_sums_over_channels_are_judged() -> None:
    """Dot products that are added up in half precision fail, too."""

    class Products(FusedCore):
        def scores(self, call: object, key: Tensor) -> Tensor:
            query = call.query  # type: ignore[attr-defined]  # a Call
            keys = key.transpose(-1, -2)
            scale = query.shape[-1] ** -0.5
            return added_up_in_parts(query, keys, torch.float16, at_once=1) * scale

    candidate = core(Products(), scores="fused", masks=[], features=[])
    assert ran(candidate, "float16").status == "failed"


def test_problems_are_long_but_never_both_ways() -> None:
    """A thousand keys where they may be, and short square problems in self-attention."""
    apart = edge_problems(core(EagerCore()), LONG, dtype="float32")
    assert {problem.geometry.key_length for problem in apart} == {1025}
    assert max(problem.geometry.query_length for problem in apart) < 300
    square = edge_problems(layer(inputs="self"), LONG, dtype="float32")
    assert {problem.geometry.key_length for problem in square} == {129}
