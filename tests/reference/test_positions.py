"""Sinusoidal positions: the formula, the relative shift, and what is refused."""

from __future__ import annotations

import math

import second_formulation as second
import torch
from agreement import disagreement
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from reference import frequencies, rotate, sinusoidal_positions

WIDTHS = st.integers(0, 8).map(lambda half: 2 * half)


@given(length=st.integers(0, 6), width=WIDTHS, offset=st.integers(0, 2000))
def test_formula(length: int, width: int, offset: int) -> None:
    """Every entry is the paper's sine or cosine within the rounding of its angle."""
    table = sinusoidal_positions(length, width, offset=offset)
    assert table.dtype == torch.float64
    assert table.shape == (length, width)
    wanted = second.sinusoidal_positions(length, width, offset)
    assert disagreement(table, wanted, "table") == ""


@given(width=WIDTHS, seed=st.integers(0, 2**32 - 1), steps=st.integers(-1000, 1000))
def test_rotation(width: int, seed: int, steps: int) -> None:
    """``rotate`` turns each pair of channels of any encoding by its own angle."""
    generator = torch.Generator().manual_seed(seed)
    encoding = torch.randn(3, width, generator=generator, dtype=torch.float64)
    wanted = second.rotated(encoding.tolist(), float(steps))
    assert disagreement(rotate(encoding, steps), wanted, "rotated") == ""


@given(start=st.integers(0, 50), steps=st.integers(-50, 50), width=WIDTHS)
def test_relative_shift(start: int, steps: int, width: int) -> None:
    """Rotating position i by some steps gives position i + steps, whatever i."""
    rotated = rotate(sinusoidal_positions(4, width, offset=start), steps)
    # Exact positions rotate into exact positions: only the two float64 errors remain.
    moved = second.sinusoidal_positions(4, width, start + steps)
    source = second.sinusoidal_positions(4, width, start)
    turned = second.rotated(sinusoidal_positions(4, width, offset=start).tolist(), float(steps))
    for row in range(4):
        for channel in range(width):
            pair = slice(channel // 2 * 2, channel // 2 * 2 + 2)
            inherited = sum(entry.error for entry in source[row][pair])
            bound = inherited + turned[row][channel].error
            exact = moved[row][channel].value
            difference = abs(second.number(rotated[row, channel].item()).value - exact)
            assert difference <= bound


def test_first_position() -> None:
    """Position 0 is 0 in the sine channels and 1 in the cosine channels, exactly."""
    assert sinusoidal_positions(1, 6).tolist() == [[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]]


def test_frequencies() -> None:
    """The first pair turns one radian a position, the next ones ever slower."""
    assert frequencies(2).tolist() == [1.0]
    falling = frequencies(32)
    assert bool((falling[1:] < falling[:-1]).all())
    assert falling.shape == (16,)
    assert frequencies(0).shape == (0,)


def test_lengths_are_prefixes() -> None:
    """A longer table starts with the shorter one, and an offset skips its first rows."""
    table = sinusoidal_positions(9, 4)
    assert torch.equal(sinusoidal_positions(5, 4), table[:5])
    assert torch.equal(sinusoidal_positions(5, 4, offset=4), table[4:])


def test_rotation_keeps_batch_axes() -> None:
    """Any axes may come before the width."""
    encoding = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    assert torch.equal(rotate(encoding, 3)[1, 2], rotate(encoding[1, 2], 3))
    half_turn = rotate(torch.tensor([[1.0, 0.0]]), math.pi)
    assert half_turn[0, 0].item() == math.cos(math.pi)


def test_odd_width_is_refused() -> None:
    """Sines and cosines come in pairs: an odd or negative width is refused in one sentence."""
    for width in (3, -2):
        with refused(f"width is {width}, not an even number"):
            sinusoidal_positions(4, width)
    with refused("width is 3, not an even number"):
        rotate(torch.zeros(2, 3), 1)


def test_negative_length_is_refused() -> None:
    """A table cannot have fewer than no rows."""
    with refused("length is -1, which is negative"):
        sinusoidal_positions(-1, 4)
