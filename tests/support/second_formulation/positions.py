"""Sinusoidal positions, one entry at a time from the paper's two formulas."""

from __future__ import annotations

from .core import nested
from .numbers import Number, cos, number, power, sin


def sinusoidal_positions(length: int, width: int, offset: int = 0) -> list[list[Number]]:
    """``sin`` and ``cos`` of ``i / 10000^(2j/d)`` in the even and odd channels."""

    def entry(row: int, channel: int) -> Number:
        angle = number(offset + row) * _frequency(channel // 2, width)
        return sin(angle) if channel % 2 == 0 else cos(angle)

    return nested((length, width), entry)  # type: ignore[no-any-return]


def rotated(encoding: list[list[float]], steps: float) -> list[list[Number]]:
    """Each pair of channels turned by the angle of some steps, as a two by two matrix would."""

    def entry(row: int, channel: int) -> Number:
        width = len(encoding[row])
        angle = number(steps) * _frequency(channel // 2, width)
        even, odd = (number(encoding[row][channel // 2 * 2 + side]) for side in (0, 1))
        if channel % 2 == 0:
            return even * cos(angle) + odd * sin(angle)
        return odd * cos(angle) - even * sin(angle)

    return nested((len(encoding), len(encoding[0]) if encoding else 0), entry)  # type: ignore[no-any-return]


def _frequency(pair: int, width: int) -> Number:
    """``10000^(-2j/d)``, the exponent itself a rounded quotient."""
    exponent = number(-2.0 * pair) / number(width)
    return power(10000.0, exponent)
