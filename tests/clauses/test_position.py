from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from examples import run_clause
from torch import Tensor

import conformance
from conformance.base.profile import PROFILES
from conformance.running.clause_run import ClauseRun
from conformance.running.runner import CandidateRun


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


def rotating(places: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Rotary attention whose positions are stored in some way."""

    def turned(heads: Tensor, first: int) -> Tensor:
        size = heads.shape[-1]
        at = places(torch.arange(first, first + heads.shape[2])).double()
        angles = at[:, None] * 10000.0 ** -(torch.arange(0, size, 2).double() / size)
        cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        one, two = heads.chunk(2, dim=-1)
        return torch.cat([one * cosine - two * sine, two * cosine + one * sine], dim=-1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = turned(query, key.shape[2] - query.shape[2]), turned(key, 0)
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value

    return attend


@pytest.mark.parametrize(
    ("places", "status"),
    [
        (lambda at: at.bfloat16(), "failed"),  # holds no odd number past 256
        (lambda at: at.float(), "passed"),
    ],
)
def test_positions_past_256_are_told_from_their_neighbours(
    places: Callable[[Tensor], Tensor], status: str
) -> None:
    """Positions that were rounded to bfloat16 are right up to 256, and fail beyond."""
    declared = conformance.core(
        semantics=conformance.Semantics(rotary="halves"), geometry={"head_size": 8}
    )
    only = ("position.rotary",)
    candidate = declared(rotating(places))
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    (result,) = (run.run(each, clause_run=ClauseRun(deferred=True)) for each in run.planned())
    assert result.status == status
