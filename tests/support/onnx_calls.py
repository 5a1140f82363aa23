"""Calls of an operator as a core, held against the golden within the derived bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from conformance._golden import golden
from conformance.declare.candidate import Candidate
from conformance.tolerance import contract_for, core_bound


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def heads(
    lengths: tuple[int, int] = (3, 5),
    *,
    num_heads: tuple[int, int] = (4, 2),
    sizes: tuple[int, int] = (8, 6),
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of the given lengths, numbers of heads and sizes of keys and values."""
    return (
        normal(batch, num_heads[0], lengths[0], sizes[0], seed=1, dtype=dtype),
        normal(batch, num_heads[1], lengths[1], sizes[0], seed=2, dtype=dtype),
        normal(batch, num_heads[1], lengths[1], sizes[1], seed=3, dtype=dtype),
    )


def keep_some(*shape: int) -> Tensor:
    """A mask that keeps the first key and about half of the others."""
    keep = torch.rand(*shape, generator=Generator().manual_seed(4)) < 0.5
    keep[..., 0] = True
    return keep


def four_axes(mask: Tensor) -> Tensor:
    """A mask with leading axes of size 1."""
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def assert_agrees(candidate: Candidate, tensors: tuple[Tensor, ...], **use: Any) -> None:
    """The answer lies within the candidate's bound around the golden's at its declared point."""
    options = {
        name: four_axes(value) if name in {"keep", "bias"} else value
        for name, value in use.items()
        if name != "return_weights"
    }
    wanted = golden.attend(*tensors, semantics=candidate.declaration.semantics, **options)
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    bound = core_bound(wanted, contract_for(candidate.declaration, dtype, wanted.scale))
    got = candidate(*tensors, **use)
    got = got[0] if use.get("return_weights") else got
    assert got.dtype == tensors[0].dtype
    assert got.shape == wanted.output.shape
    assert bool(((got.double() - wanted.output).abs() <= bound).all())
