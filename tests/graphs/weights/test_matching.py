"""Probed rows matched with stored tensors: by value, up to one positive factor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from weight_graphs import drawn

from conformance.graphs.weights.matching import array_of, match_rows, match_vector

STORED = drawn(24, 6)
NOISE = 1e-6


@pytest.mark.parametrize("factor", [1.0, 0.25, 3.7])
@pytest.mark.parametrize("start", [0, 5, 16])
def test_a_block_is_found_with_its_factor(factor: float, start: int) -> None:
    """Wherever it begins, transposed or not, its stored rows come back bit by bit."""
    rows = factor * STORED[start : start + 8].astype(np.float64)
    for stored in (STORED, STORED.T.copy()):
        match = match_rows(rows, NOISE * np.abs(rows), {"other": drawn(24, 6) + 9, "it": stored})
        assert match.source == "it"
        assert np.array_equal(match.rows, STORED[start : start + 8])
        assert match.index.tolist() == list(range(start, start + 8))
        assert abs(match.factor - factor) < 1e-9


def test_scattered_rows_are_found_one_by_one() -> None:
    """In the order in which they were probed."""
    order = [7, 3, 11, 0]
    rows = STORED[order].astype(np.float64)
    match = match_rows(rows, NOISE * np.abs(rows), {"it": STORED})
    assert match.index.tolist() == order
    assert match.stored == 24


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: -rows,
        lambda rows: rows * np.linspace(1, 1.1, len(rows))[:, None],
        lambda rows: rows + 1e-4 * (np.arange(6) == 2),
    ],
    ids=["negated", "row by row", "one column"],
)
def test_what_is_not_stored_is_not_found(change: object) -> None:
    """A negative factor, a factor for each row and a small change are no match."""
    rows = change(STORED[:8].astype(np.float64))
    assert match_rows(rows, NOISE * np.abs(rows), {"it": STORED}) is None


def test_rows_of_zeros_are_no_hindrance() -> None:
    """A matrix whose first row was pruned is still matched as a block."""
    stored = STORED.copy()
    stored[8] = 0
    rows = stored[8:16].astype(np.float64)
    match = match_rows(rows, NOISE * np.abs(rows), {"it": stored})
    assert match.index.tolist() == list(range(8, 16))


def test_a_vector_is_found_in_a_longer_one() -> None:
    """A bias among those of a fused projection; without any factor."""
    vector = drawn(18)
    match = match_vector(vector[6:12].astype(np.float64), np.full(6, NOISE), {"it": vector})
    assert np.array_equal(match.rows, vector[6:12])
    assert match_vector(2.0 * vector[6:12], np.full(6, NOISE), {"it": vector}) is None


def test_a_vector_is_found_beside_a_large_tensor() -> None:
    """Ten million equal places of another tensor are no match."""
    stored = {"table": np.ones(10_000_000, np.float32), "bias": np.arange(9, dtype=np.float32)}
    match = match_vector(np.array([3.0, 4.0]), np.full(2, 1e-6), stored)
    assert match is not None
    assert (match.source, match.index.tolist()) == ("bias", [3, 4])


def test_floats_of_8_bits_are_arrays() -> None:
    """A checkpoint may hold them beside the weights of an attention."""
    assert array_of(torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn)).tolist() == [0.5, 2.0]
