from __future__ import annotations

import math
from typing import Any

import pytest
from examples import bare, core, run_clause
from torch import Tensor

from conformance import Semantics

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


def weights(query: Tensor, key: Tensor) -> Tensor:
    """Logits."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def sigmoid(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Weights that do not sum to one."""
    return weights(query, key).sigmoid() @ value


def squared(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Values enter squared."""
    return bare(query, key, value * value.abs())


def shifted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A constant on the answer."""
    return bare(query, key, value) + 100.0


@pytest.mark.parametrize(
    ("broken", "slug"),
    [
        (sigmoid, "numerics.key-shift"),
        (sigmoid, "numerics.constant-value"),
        (squared, "numerics.value-linear"),
        (shifted, "numerics.convex"),
    ],
)
def test_broken_law_fails(broken: Any, slug: str) -> None:
    """Each law is broken by its own mistake."""
    assert run_clause(core(broken, **PROMISES), slug).status == "failed"


@pytest.mark.parametrize(
    "slug", ["numerics.convex", "numerics.key-shift", "numerics.constant-value"]
)
@pytest.mark.parametrize(
    "declared",
    [{"softmax_axis": "query"}, {"softmax_axis": "none"}, {"mask_operation": "multiply-weights"}],
    ids=str,
)
def test_weights_that_need_not_sum_to_one_are_not_held_to_it(
    slug: str, declared: dict[str, str]
) -> None:
    """Laws of weights that sum to one say nothing of a candidate that declares other ones."""
    result = run_clause(core(bare, **PROMISES, semantics=Semantics(**declared)), slug)
    assert (result.status, result.reason) == (
        "not-applicable",
        "at its declared semantics the weights of a query do not sum to one",
    )


@pytest.mark.parametrize("axis", ["query", "none"])
def test_linearity_holds_whatever_the_weights_sum_to(axis: str) -> None:
    """Weights of any sum still weigh the values linearly."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = weights(query, key)
        return (logits if axis == "none" else logits.softmax(-2)) @ value

    candidate = core(kernel, **PROMISES, semantics=Semantics(softmax_axis=axis))
    assert run_clause(candidate, "numerics.value-linear").status == "passed"
