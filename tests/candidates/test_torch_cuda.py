"""Torch's kernels for CUDA are offered where torch sees CUDA, and say why not elsewhere."""

from __future__ import annotations

import pytest
import torch

import candidates
from candidates import torch_cuda
from conformance.base.profile import PROFILES
from conformance.declare.candidate import Candidate
from conformance.running.runner import CandidateRun

KERNELS = [value for value in vars(torch_cuda).values() if isinstance(value, Candidate)]


def test_they_are_checked_where_cuda_is() -> None:
    """A check of the folder has them there, and nowhere else."""
    assert ("torch_cuda" in candidates.__conformance__) is torch.cuda.is_available()
    assert len(KERNELS) == 7


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: str(kernel.name))
def test_each_clause_says_that_the_device_is_absent(kernel: Candidate) -> None:
    """Nothing fails on a CPU: no clause applies, and the reason names the device."""
    planned = CandidateRun(kernel, profile=PROFILES["quick"]).planned()
    assert planned
    told = "the device cuda is not here: torch sees"
    assert all(clause.reason.startswith(told) for clause in planned)


def test_math_is_right_on_any_device() -> None:
    """Called on the CPU, the one kernel that runs anywhere equals torch's own choice."""
    query, key, value = torch.rand(3, 2, 4, 5, 8).unbind(0)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(torch_cuda.torch_cuda_math(query, key, value), expected)
