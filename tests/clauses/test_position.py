from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from examples import run_clause
from torch import Tensor

import conformance


def table(length: int, width: int, base: float = 10000.0) -> Tensor:
    """The encoding of each position."""
    angle = torch.arange(length).double()[:, None] * base ** -(
        torch.arange(0, width, 2).double() / width
    )
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def encoding(make: Callable[[int, int], Tensor]) -> conformance.declare.candidate.Candidate:  # type: ignore[name-defined]
    """A position encoding of a table."""
    return conformance.positions(max_length=64)(
        lambda x: x + make(x.shape[1], x.shape[2]).to(x.dtype)
    )


def halves(length: int, width: int) -> Tensor:
    """All sines, then all cosines."""
    full = table(length, width)
    return torch.cat([full[:, 0::2], full[:, 1::2]], -1)


@pytest.mark.parametrize(
    ("make", "slug", "status"),
    [
        (table, "position.formula", "passed"),
        (table, "position.relative-shift", "passed"),
        (table, "position.breaks-equivariance", "passed"),
        (lambda length, width: table(length, width, 1000.0), "position.formula", "failed"),
        (lambda length, width: table(length + 1, width)[1:], "position.formula", "failed"),
        (lambda length, width: table(length + 1, width)[1:], "position.relative-shift", "passed"),
        (halves, "position.formula", "failed"),
        (lambda length, width: 2 * table(length, width), "position.relative-shift", "passed"),
        (lambda length, width: table(length, width).abs(), "position.relative-shift", "failed"),
        (
            torch.zeros,
            "position.breaks-equivariance",
            "failed",
        ),
    ],
)
def test_encodings(make: Callable[[int, int], Tensor], slug: str, status: str) -> None:
    """The formula sees each other table; the shift sees what is no rotation, and nothing else."""
    assert run_clause(encoding(make), slug).status == status
