"""Slopes and biases of attention with linear biases."""

from __future__ import annotations

import pytest
import torch
from golden_problems import Shape, core_case

from reference import STANDARD, alibi_bias, alibi_slopes, attend

POINT = STANDARD.replace(alibi=True)


def test_slopes_of_a_power_of_two() -> None:
    """Eight heads have the paper's slopes 1/2, 1/4 .. 1/256 (Press et al. 2022, section 3)."""
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]


@pytest.mark.parametrize("num_heads", [3, 5, 6, 7, 12, 20])
def test_slopes_of_other_counts(num_heads: int) -> None:
    """They start as those of the next lower power of two; the rest are half-way between these."""
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = alibi_slopes(num_heads)
    assert slopes.shape == (num_heads,)
    assert torch.equal(slopes[:power], alibi_slopes(power))
    assert torch.equal(slopes[power:], alibi_slopes(2 * power)[::2][: num_heads - power])


def test_slopes_of_one_head() -> None:
    """A single head has the smallest slope."""
    assert alibi_slopes(1).tolist() == [2.0**-8]


def test_bias_is_minus_slope_times_distance() -> None:
    """Each position of distance takes one slope off, on either side of the query."""
    bias = alibi_bias(4, torch.tensor([1, 4]), 3)
    assert bias.shape == (1, 4, 2, 3)
    assert torch.equal(bias[0, 1], -(2.0**-4) * torch.tensor([[1, 0, 1], [4, 3, 2]]).double())


@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
def test_alibi_is_a_bias(alignment: str) -> None:
    """Attention with ALiBi is attention with that bias tensor, at either alignment."""
    inputs = core_case(Shape(query_length=3, key_length=5)).inputs
    aligned = STANDARD.replace(causal_alignment=alignment)
    start = 2 if alignment == "bottom-right" else 0
    bias = alibi_bias(4, torch.arange(start, start + 3), 5)
    expected = attend(*inputs, bias=bias, causal=True, semantics=aligned).output
    given = attend(*inputs, causal=True, semantics=aligned.replace(alibi=True)).output
    assert torch.equal(given, expected)


def test_alibi_is_not_scaled() -> None:
    """A scale of zero leaves the distances, even where a given bias is scaled."""
    inputs = core_case(Shape()).inputs
    point = POINT.replace(bias_order="before-scale")
    expected = alibi_bias(4, torch.arange(1, 4), 4).expand(2, 4, 3, 4)
    assert torch.equal(attend(*inputs, scale=0.0, semantics=point).logits, expected)
