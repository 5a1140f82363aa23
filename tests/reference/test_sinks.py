"""Attention sinks: one more logit a head, whose value is zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from golden_problems import Shape, core_case
from refusals import refused

from reference import STANDARD, attend, softmax

SINKS = torch.tensor([-1.0, 0.5, 2.0, 0.0], dtype=torch.float64)
ROUNDING = 50 * 2.0**-53


def test_a_sink_is_a_key_without_a_value() -> None:
    """One more key of zeros with a value of zeros, whose bias is the sink, gives the same."""
    query, key, value = core_case(Shape()).inputs
    found = attend(query, key, value, sinks=SINKS)
    more_key, more_value = (
        torch.cat([tokens, torch.zeros_like(tokens[:, :, :1])], dim=2) for tokens in (key, value)
    )
    bias = torch.zeros(1, 4, 1, 5, dtype=torch.float64)
    bias[0, :, 0, 4] = SINKS
    expected = attend(query, more_key, more_value, bias=bias)
    assert bool(((found.output - expected.output).abs() <= ROUNDING).all())
    assert bool(((found.weights - expected.weights[..., :4]).abs() <= ROUNDING).all())


@pytest.mark.parametrize("rule", ["zeros", "nan", "mean-of-all", "mean-of-valid"])
def test_rows_without_keys(rule: Any) -> None:
    """A row without keys gives its whole weight to the sink and returns zeros, at any rule."""
    inputs = core_case(Shape(query_length=5)).inputs
    point = STANDARD.replace(empty_rows=rule)
    found = attend(*inputs, sinks=SINKS, causal=True, semantics=point)
    assert bool(found.empty.any())
    assert not found.output[found.empty].any()


def test_sinks_of_minus_infinity_change_nothing() -> None:
    """A sink that counts for nothing leaves the bits as they are."""
    inputs = core_case(Shape()).inputs
    none = torch.full((4,), -math.inf)
    assert torch.equal(attend(*inputs, sinks=none).output, attend(*inputs).output)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_sinks(size: float) -> None:
    """A large sink takes all the weight, a very negative one none; neither overflows."""
    inputs = core_case(Shape()).inputs
    output = attend(*inputs, sinks=torch.full((4,), size)).output
    expected = torch.zeros_like(output) if size > 0 else attend(*inputs).output
    assert torch.equal(output, expected)


def test_each_head_has_its_own() -> None:
    """A sink lowers the weights of its head alone, in every row and item."""
    inputs = core_case(Shape()).inputs
    one = torch.tensor([-math.inf, 1.0, -math.inf, -math.inf])
    sums = attend(*inputs, sinks=one).weights.sum(dim=-1)
    assert bool((sums[:, 1] < 0.99).all())
    assert bool(((sums[:, [0, 2, 3]] - 1.0).abs() <= ROUNDING).all())


def test_other_axes_know_no_sink() -> None:
    """A softmax over another axis than the keys leaves the sinks out."""
    logits = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    assert torch.equal(softmax(logits, "query", sinks=SINKS), softmax(logits, "query"))


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
