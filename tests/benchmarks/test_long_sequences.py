"""The benchmark of long sequences, on short ones: it judges all rows, and tells what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import long_sequences

BROKEN = """
import torch
import conformance


@conformance.core(causal="top-left", features=[])
def one_block_skipped(query, key, value, *, causal=False):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores[..., 144:160] = -torch.inf
    return scores.softmax(-1) @ value
"""


@pytest.mark.parametrize("more", [[], ["--causal"], ["--rows", "7"]])
def test_correct_kernels_are_within_their_bounds(more: list[str]) -> None:
    """Both kernels that come with it pass, with a margin, seconds and memory."""
    told: list[str] = []
    assert long_sequences.main(["--length", "150", *more], show=told.append) == 0
    assert [line.split()[0] for line in told[1:]] == ["torch_kernel", "eager_in_blocks"]
    assert all("margin 0.0" in line and "GiB" in line for line in told[1:])


def test_a_block_that_is_skipped_is_told(tmp_path: Path) -> None:
    """A kernel that leaves out sixteen keys fails, and the place is that of the whole answer."""
    target = tmp_path / "skipping.py"
    target.write_text(BROKEN, encoding="utf-8")
    told: list[str] = []
    assert long_sequences.main([str(target), "--length", "200"], show=told.append) == 1
    assert "the answer to a long sequence is wrong at batch 0, head 0, query" in told[-1]
