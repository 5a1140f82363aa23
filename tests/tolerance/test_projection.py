"""The error of one linear map."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import linear

from conformance.declare.promises import declare
from conformance.tolerance import contract_for, projection_bound

FLOAT32 = contract_for(declare("layer"), "float32", 1.0)
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def in_order(tokens: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """One input channel after the other."""
    total = torch.zeros(*tokens.shape[:-1], matrix.shape[0])
    for channel in range(matrix.shape[1]):
        total += tokens[..., channel : channel + 1] * matrix[:, channel]
    return total if bias is None else total + bias


def signed_permutation(size: int, factor: float = 1.0) -> Tensor:
    order = torch.randperm(size, generator=Generator().manual_seed(0))
    signs = torch.ones(size, 1, dtype=torch.float64)
    signs[::3] = -1.0
    return factor * signs * torch.eye(size, dtype=torch.float64)[order]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", ["normal", "positive", "offset", "tiny"])
@pytest.mark.parametrize("compute", [linear, in_order])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 3), (64, 16), (512, 8)])
def test_float32_projections_are_within_the_bound(
    compute: Linear, kind: str, inputs: int, outputs: int, *, with_bias: bool
) -> None:
    """Neither torch's nor a sequential float32 projection leaves the bound."""
    generator = Generator().manual_seed(inputs + outputs)
    tokens = torch.randn(2, 5, inputs, generator=generator)
    matrix = torch.randn(outputs, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if with_bias else None
    if kind == "positive":
        tokens, matrix = tokens.abs(), matrix.abs()
    elif kind == "offset":
        tokens = tokens + 1e4
    elif kind == "tiny":
        tokens, matrix = tokens * 1e-20, matrix * 1e-20
    wide = (tokens.double(), matrix.double(), None if bias is None else bias.double())
    bound = projection_bound(*wide, FLOAT32)
    assert bound is not None
    error = (compute(tokens, matrix, bias).double() - linear(*wide)).abs()
    assert bool((error <= bound).all())


@pytest.mark.parametrize("factor", [1.0, 0.25, 8.0])
def test_moving_and_doubling_makes_no_error(factor: float) -> None:
    """A signed permutation times a power of two is exact, with no bias or a bias of zeros."""
    tokens = torch.randn(2, 3, 6, dtype=torch.float64)
    matrix = signed_permutation(6, factor)
    assert projection_bound(tokens, matrix, None, FLOAT32) is None
    assert projection_bound(tokens, matrix, torch.zeros(6).double(), FLOAT32) is None


@pytest.mark.parametrize("change", ["bias", "factor of 3", "two entries", "tf32"])
def test_anything_more_makes_an_error(change: str) -> None:
    """A bias, another factor, a second entry in a row or tf32 operands end the exactness."""
    tokens, matrix = torch.ones(1, 2, 4, dtype=torch.float64), signed_permutation(4)
    bias = torch.ones(4, dtype=torch.float64) if change == "bias" else None
    if change == "factor of 3":
        matrix = matrix * 3.0
    elif change == "two entries":
        matrix = matrix + signed_permutation(4).roll(1, 0)
    tf32 = contract_for(declare("layer", tf32=True), "float32", 1.0)
    bound = projection_bound(tokens, matrix, bias, tf32 if change == "tf32" else FLOAT32)
    assert bound is not None
    assert bool((bound > 0).all())


@pytest.mark.parametrize("exact", [True, False])
def test_the_error_of_the_input_is_carried_through(*, exact: bool) -> None:
    """Inputs at the edge of their own error keep the output within the bound."""
    generator = Generator().manual_seed(3)
    tokens = torch.randn(1, 4, 6, generator=generator, dtype=torch.float64)
    incoming = torch.rand(1, 4, 6, generator=generator, dtype=torch.float64)
    matrix = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    matrix = signed_permutation(6) if exact else matrix
    bound = projection_bound(tokens, matrix, None, FLOAT32, incoming=incoming)
    assert bound is not None
    for row in matrix:
        moved = tokens + incoming * row.sign()
        error = (linear(moved, matrix) - linear(tokens, matrix)).abs()
        assert bool((error <= bound + 1e-12).all())  # the comparison is float64 itself
    widest = linear(incoming, matrix.abs())
    assert bool((bound >= widest).all())
    assert bool((bound <= widest * 1.001 + 1e-5).all())
