"""Attention sinks: one more logit a head, whose value is zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from golden_problems import Shape, core_case
from refusals import refused

from reference import STANDARD, attend

SINKS = torch.tensor([-1.0, 0.5, 2.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("rule", ["zeros", "nan", "mean-of-all", "mean-of-valid"])
def test_rows_without_keys(rule: Any) -> None:
    """A row without keys gives its whole weight to the sink and returns zeros, at any rule."""
    inputs = core_case(Shape(query_length=5)).inputs
    point = STANDARD.replace(empty_rows=rule)
    found = attend(*inputs, sinks=SINKS, causal=True, semantics=point)
    assert bool(found.empty.any())
    assert not found.output[found.empty].any()


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_sinks(size: float) -> None:
    """A large sink takes all the weight, a very negative one none; neither overflows."""
    inputs = core_case(Shape()).inputs
    output = attend(*inputs, sinks=torch.full((4,), size)).output
    expected = torch.zeros_like(output) if size > 0 else attend(*inputs).output
    assert torch.equal(output, expected)


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (torch.zeros(2, 2), "sinks has shape [2, 2]: it needs 1 axes [H]"),
        (torch.zeros(3), "sinks has shape [3]: axis 0 must be 4, the number of heads of query"),
        (
            torch.zeros(4, dtype=torch.int64),
            "sinks has dtype torch.int64, not a floating-point one",
        ),
        (
            torch.full((4,), math.nan),
            "sinks has entries that are neither finite nor minus infinity",
        ),
    ],
)
def test_wrong_sinks_are_refused(sinks: torch.Tensor, message: str) -> None:
    """The message names the argument and what is wrong with it."""
    with refused(message):
        attend(*core_case(Shape()).inputs, sinks=sinks)
