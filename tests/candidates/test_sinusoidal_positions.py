from __future__ import annotations

import math

import pytest
import torch

from candidates.sinusoidal_positions import (
    SinusoidalPositions,
    positioned_attention,
    sinusoidal_positions,
)
from conformance._golden import golden


def test_documents_formula() -> None:
    """Each entry is the sine or cosine of i / 10000^(2j/d), as far as float32 carries the angle."""
    length, width = 60, 32
    table = SinusoidalPositions(width, dropout=0.0).P[0, :length].double()
    error = (table - golden.sinusoidal_positions(length, width)).abs()
    # The exponent is rounded and enlarged by ln(10000) < 10, then power, quotient and sine round.
    angles = torch.arange(length)[:, None] * golden.frequencies(width).repeat_interleave(2)
    assert bool((error <= 2.0**-24 * (13 * angles + 2)).all())


def test_one_entry_by_hand() -> None:
    """Position 3, column 2 of width 4 is sin(3 / 100)."""
    table = SinusoidalPositions(4, dropout=0.0).P
    assert math.isclose(float(table[0, 3, 2]), math.sin(0.03), rel_tol=2.0**-21)


def test_table_is_a_plain_attribute() -> None:
    """The table of 1000 rows is in no state dict and does not follow the module."""
    positions = SinusoidalPositions(8, dropout=0.0)
    assert positions.P.shape == (1, 1000, 8)
    assert not positions.state_dict()
    assert positions.to(torch.float64).P.dtype == torch.float32


def test_refuses_an_odd_width() -> None:
    """Sines and cosines come in pairs: an odd width is refused in one sentence."""
    with pytest.raises(ValueError, match="num_hiddens=7 is odd"):
        SinusoidalPositions(7, dropout=0.0)


def test_refuses_more_positions_than_the_table_has() -> None:
    """An input longer than max_len fails, even where one row would broadcast."""
    with pytest.raises(ValueError, match="2 positions, more than max_len=1"):
        SinusoidalPositions(4, dropout=0.0, max_len=1)(torch.zeros(1, 2, 4))


def test_drops_out_in_training_only() -> None:
    """Dropout follows the sum, in training mode."""
    positions = SinusoidalPositions(4, dropout=1.0)
    assert not positions(torch.ones(1, 3, 4)).any()
    assert positions.eval()(torch.ones(1, 3, 4)).any()


def test_declared_candidate_adds_the_table() -> None:
    """The candidate returns its input plus the encoding, without dropout."""
    tokens = torch.full((2, 5, 6), 0.25)
    table = SinusoidalPositions(6, dropout=0.0).P[:, :5]
    assert torch.equal(sinusoidal_positions(tokens), tokens + table)
    assert sinusoidal_positions.declaration.max_length == 1000


def test_attention_over_positions_is_not_equivariant() -> None:
    """Reordering the tokens does more than reorder the rows; the same call repeats its answer."""
    forward = positioned_attention(None, None)
    tokens = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    order = [2, 0, 1, 3]
    with torch.no_grad():
        rows, swapped = forward(tokens), forward(tokens[:, order])
        assert torch.equal(forward(tokens), rows)
    # Rounding is eight digits away from a difference in the second.
    assert float((swapped - rows[:, order]).abs().max()) > 1e-2
