from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from examples import bare, core, layer, problem, run_clause
from torch import Tensor

from conformance.clauses.numerics import HEADROOM, LOGIT_TARGETS, _enlarge
from conformance.clauses.subject import Subject

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


def scaled(factor: float) -> Any:
    """A core whose logits are off by a factor."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query * factor, key, value)

    return core(kernel, **PROMISES)


@pytest.mark.parametrize("factor", [1.1, 0.9, 2.0, 0.0, -1.0])
def test_wrong_scale_fails(factor: float) -> None:
    """A scale that is ten percent off fails."""
    assert run_clause(scaled(factor), "numerics.scale").status == "failed"


def test_laws_do_not_see_a_wrong_scale() -> None:
    """One wrong scale does not redden the laws, which compare the candidate with itself."""
    for slug in ("numerics.key-shift", "numerics.value-linear", "numerics.convex"):
        assert run_clause(scaled(1.5), slug).status == "passed"


@pytest.mark.parametrize("target", LOGIT_TARGETS)
@pytest.mark.parametrize("made", [core, layer])
def test_enlarged_problems_keep_their_headroom(target: float, made: Any) -> None:
    """No product of the golden exceeds a sixteenth of the largest number, scaled or not."""
    subject = Subject(made(), "float32")
    enlarged = _enlarge(subject, subject.inputs(problem()), target)
    attention = subject.golden(enlarged).core
    products = attention.query.abs() @ attention.key.abs().mT
    assert float(products.max()) <= 1.01 * HEADROOM * torch.finfo(torch.float32).max
    assert float(attention.scores.abs().max()) == pytest.approx(target, rel=0.5)
    assert bool(attention.output.isfinite().all())


def test_missing_maximum_overflows() -> None:
    """Exponentials without the maximum subtracted fail on large logits alone."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).exp()
        return weights / weights.sum(-1, keepdim=True) @ value

    candidate = core(kernel, **PROMISES)
    result = run_clause(candidate, "numerics.large-logits")
    assert result.status == "failed"
    assert result.violation is not None
    assert result.violation.kind == "finite"
    assert run_clause(candidate, "numerics.scale").status == "passed"


def test_half_precision_inside_fails() -> None:
    """A product rounded to bfloat16 is outside the bound of float32."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return bare(query.bfloat16().float(), key, value)

    assert run_clause(core(kernel, **PROMISES), "numerics.golden").status == "failed"
