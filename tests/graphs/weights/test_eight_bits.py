"""Matrices that a graph stores in 8 bits, compared with those that they were made of."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.graphs.weights.matching import rounded_to_8_bits

RAW = np.random.default_rng(3).normal(size=(16, 16)).astype(np.float32)


def quantised(
    bits: int, *, channels: bool = False, offset: int = 0, factor: float = 1.0
) -> np.ndarray:  # type: ignore[type-arg]
    """The matrix on a symmetric grid, as the runtime reads it."""
    axis = 1 if channels else None
    step = np.abs(RAW).max(axis=axis, keepdims=channels) / (2 ** (bits - 1) - 1)
    return (np.rint(RAW / step) - offset) * step * factor


@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("channels", [False, True])
def test_rounding_is_no_difference(bits: int, channels: bool) -> None:  # noqa: FBT001
    """A matrix on its grid, by tensor or by channel, is the one that it was made of."""
    assert rounded_to_8_bits(quantised(bits, channels=channels), RAW)


@pytest.mark.parametrize(
    "wrong", [{"offset": 20}, {"offset": 2}, {"factor": 1.5}, {"factor": 1.02}, {"factor": -1.0}]
)
def test_another_zero_point_or_step_is_one(wrong: dict[str, float]) -> None:
    """What rounding does not explain is another matrix."""
    assert not rounded_to_8_bits(quantised(8, **wrong), RAW)  # type: ignore[arg-type]
