"""The rows that stand for all rows of a long problem."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from conformance._golden import golden
from conformance.tolerance import model
from conformance.tolerance.statistical import restrict, sampled_rows


@given(st.integers(0, model.SAMPLED_ROWS))
def test_few_rows_are_all_judged(length: int) -> None:
    """Up to the sample's size nothing is left out."""
    assert sampled_rows(length).tolist() == list(range(length))


@given(st.integers(model.SAMPLED_ROWS + 1, 5000))
def test_many_rows_are_sampled(length: int) -> None:
    """The sample is full, ascending without repetition, and holds both ends and block edges."""
    rows = sampled_rows(length).tolist()
    assert len(rows) == model.SAMPLED_ROWS
    assert rows == sorted(set(rows))
    assert {0, 15, 16, 17, 31, 32, 33, 63, 64, length - 1} <= set(rows)
    assert rows[-1] == length - 1


def test_a_sample_has_rows_away_from_edges() -> None:
    """A mistake at no special row is met as well: over half of the sample is drawn."""
    edges = {size + step for size in (16, 32, 64, 128, 256, 512) for step in (-1, 0, 1)}
    assert len(set(sampled_rows(600).tolist()) - edges) > model.SAMPLED_ROWS // 2


def test_the_sample_depends_on_the_length_alone() -> None:
    """Two runs judge the same rows, and torch's own generator is neither read nor moved."""
    torch.manual_seed(1)
    first, state = sampled_rows(1000), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, sampled_rows(1000))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("bias_rows", [1, 90, None])
def test_restricting_an_evaluation_is_evaluating_the_rows(bias_rows: int | None) -> None:
    """A restricted evaluation equals one of those queries only, intermediate values included."""
    generator = Generator().manual_seed(0)
    query = torch.randn(2, 2, 90, 4, generator=generator)
    key = torch.randn(2, 1, 7, 4, generator=generator)
    bias = None if bias_rows is None else torch.randn(1, 2, bias_rows, 7, generator=generator)
    keep = torch.rand(2, 1, 90, 7, generator=generator) < 0.7
    rows = sampled_rows(90)
    chosen = bias if bias is None or bias_rows == 1 else bias[:, :, rows]
    whole = golden.attend(query, key, key, bias=bias, keep=keep)
    part = golden.attend(query[:, :, rows], key, key, bias=chosen, keep=keep[:, :, rows])
    restricted = restrict(whole, rows)
    for name in ("query", "scores", "capped", "logits", "weights", "output", "allowed", "empty"):
        torch.testing.assert_close(getattr(restricted, name), getattr(part, name))
    assert (restricted.bias is None) == (bias is None)
    assert restricted.bias is None or restricted.bias.shape == chosen.shape
