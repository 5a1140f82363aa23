"""Rotary positions: pairs of channels turn by an angle that grows with the position.

    (x_a, x_b) -> (x_a cos t - x_b sin t, x_a sin t + x_b cos t),    t = position * base^(-2i/R)

Su et al. 2021, RoFormer, equation 34. The product of two turned heads depends on the distance of
their positions alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .normalisation import normalise_heads, weigh
from .semantics import Semantics


def rotate_heads(
    heads: Tensor, positions: Tensor, semantics: Semantics, tables: Tensor | None = None
) -> Tensor:
    """Turn ``heads [B, H, L, D]`` of tokens at ``positions [L]`` or ``[B, 1, L]``; float64.

    Heads stay unchanged without rotary positions. ``tables`` are the tables of a call.
    """
    heads = heads.double()
    if semantics.rotary == "none":
        return heads
    positions = positions.to(heads.device)
    frequencies = rotary_frequencies(heads.shape[-1], semantics).to(heads.device)
    stretched = stretch_heads(heads, positions, tables, semantics)
    angles = angles_at(positions, frequencies, tables)
    return heads if angles is None else turn_heads(stretched, angles, semantics)


def prepare_heads(
    heads: Tensor,
    positions: Tensor,
    semantics: Semantics,
    tables: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Normalise and turn ``heads [B, H, L, D]`` in the declared order; float64.

    ``weight``, ``[H or 1, D]``, multiplies what is normalised before it is turned.
    """
    if semantics.normalises_late:
        return normalise_heads(rotate_heads(heads, positions, semantics, tables), semantics)
    normalised = weigh(normalise_heads(heads, semantics), weight)
    return rotate_heads(normalised, positions, semantics, tables)


def angles_at(
    positions: Tensor, frequencies: Tensor | None, tables: Tensor | None
) -> Tensor | None:
    """The angle of each pair of channels at each position: float64 ``[..., L, R/2]``, or None.

    A complex table holds cosine and sine, a real table angles; missing rows are counted from the
    other end.
    """
    if frequencies is None or tables is None:
        return None if frequencies is None else positions.double()[..., None] * frequencies
    rows = rows_at(tables, positions)
    return rows.angle() if rows.is_complex() else rows


def rows_at(tables: Tensor, positions: Tensor) -> Tensor:
    """The rows of tables ``[B or 1, N, R/2]`` at positions: ``[B or 1, 1, L, R/2]``.

    Positions ``[L]`` hold for all heads and items, or have the shape ``[B, H, L]`` or ``[H, L]``.
    """
    every = tables.unsqueeze(-3)
    index = positions.long() % max(tables.shape[-2], 1)
    if index.dim() == 1:
        return every[..., index, :]
    index = index[(None,) * (every.dim() - 1 - index.dim())]
    return torch.take_along_dim(every, index.unsqueeze(-1), dim=-2)


def stretch_heads(
    heads: Tensor, positions: Tensor, tables: Tensor | None, semantics: Semantics
) -> Tensor:
    """Multiply the turning channels of heads by the table entries' lengths, or the amplitude."""
    lengths: Tensor | float = semantics.rotary_amplitude
    if tables is not None and tables.is_complex():
        lengths = rows_at(tables, positions).abs()
    elif lengths == 1.0:
        return heads
    first, second = rotary_pairs(heads.shape[-1], semantics)
    stretched = heads.expand(*(heads[..., first] * lengths).shape[:-1], -1).clone()
    stretched[..., first], stretched[..., second] = (
        heads[..., first] * lengths,
        heads[..., second] * lengths,
    )
    return stretched


def turn_heads(heads: Tensor, angles: Tensor, semantics: Semantics) -> Tensor:
    """Turn each pair of channels of ``heads [..., L, D]`` by its angle ``[..., L, R/2]``."""
    first, second = rotary_pairs(heads.shape[-1], semantics)
    cosine, sine = angles.cos(), angles.sin()
    one = heads[..., first] * cosine - heads[..., second] * sine
    other = heads[..., first] * sine + heads[..., second] * cosine
    turned = heads.expand(*one.shape[:-1], -1).clone()
    turned[..., first], turned[..., second] = one, other
    return turned


def rotary_pairs(head_size: int, semantics: Semantics) -> tuple[Tensor, Tensor]:
    """The pairs of channels that turn together: two int64 ``[R/2]``, empty without a rotation."""
    half = rotary_size(head_size, semantics) // 2
    pairs = torch.arange(half)
    if semantics.rotary == "halves":
        return pairs, pairs + half
    return 2 * pairs, 2 * pairs + 1


def rotary_size(head_size: int, semantics: Semantics) -> int:
    """The number R of turned channels of a head: the largest even number within the fraction."""
    if semantics.rotary == "none":
        return 0
    # As users compute R: int(0.3 * 10) is 3, though 0.3 is a little less than three tenths.
    return int(head_size * semantics.rotary_fraction) // 2 * 2


def rotary_angles(positions: Tensor, head_size: int, semantics: Semantics) -> Tensor:
    """The angle of each pair at ``positions [..., L]``, in radians: float64 ``[..., L, R/2]``."""
    return positions.double()[..., None] * rotary_frequencies(head_size, semantics).to(
        positions.device
    )


def rotary_frequencies(head_size: int, semantics: Semantics) -> Tensor:
    """The angle that one position adds to each pair: float64 ``[R/2]``."""
    size = rotary_size(head_size, semantics)
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / max(size, 1)
    if semantics.rotary_scaling is None:
        return float(semantics.rotary_base) ** -exponents
    name, *numbers = semantics.rotary_scaling
    return _SCALINGS[str(name)](float(semantics.rotary_base), size, exponents, *map(float, numbers))


def _linear(base: float, _size: int, exponents: Tensor, factor: float) -> Tensor:
    """All positions are closer (Chen et al. 2023)."""
    return base**-exponents / factor


def _ntk(base: float, size: int, exponents: Tensor, factor: float) -> Tensor:
    """A larger base: the slowest pair is slower by the factor, the fastest stays (bloc97, 2023)."""
    larger: Tensor = (base * factor ** (size / max(size - 2, 1))) ** -exponents
    return larger


def _yarn(
    base: float,
    size: int,
    exponents: Tensor,
    factor: float,
    fast: float,
    slow: float,
    over: float,
) -> Tensor:
    """Pairs that turn often within the length stay, slow ones are linear (Peng et al. 2023)."""

    def pair_that_turns(times: float) -> float:
        return size * math.log(over / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(fast)), 0)
    high = min(math.ceil(pair_that_turns(slow)), size - 1)
    reach = high - low if high != low else _NO_RAMP
    slower = ((torch.arange(len(exponents)).double() - low) / reach).clamp(0.0, 1.0)
    own = base**-exponents
    return own / factor * slower + own * (1.0 - slower)


def _llama3(
    base: float,
    _size: int,
    exponents: Tensor,
    factor: float,
    low: float,
    high: float,
    over: float,
) -> Tensor:
    """Pairs with more than ``high`` turns within the length stay; below ``low`` they are linear."""
    own = base**-exponents
    stays = ((over * own / (2 * math.pi) - low) / (high - low)).clamp(0.0, 1.0)
    return own / factor * (1.0 - stays) + own * stays


# The divisor of a ramp from a pair to itself.
_NO_RAMP: Final = 0.001
_SCALINGS: Final[dict[str, Callable[..., Tensor]]] = {
    "linear": _linear,
    "ntk": _ntk,
    "yarn": _yarn,
    "llama3": _llama3,
}
