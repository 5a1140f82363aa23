"""Rotary positions: pairs of channels turn by an angle that grows with the position.

    (x_a, x_b) -> (x_a cos t - x_b sin t, x_a sin t + x_b cos t),    t = position * base^(-2i/R)

Su et al. 2021, RoFormer, equation 34. A product of two such heads depends on the distance of their
positions alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .semantics import Semantics


def rotate_heads(heads: Tensor, positions: Tensor, semantics: Semantics) -> Tensor:
    """Turn ``heads [B, H, L, D]``, whose tokens stand at ``positions [L]``; float64.

    Without rotary positions they stay as they are.
    """
    heads = heads.double()
    if semantics.rotary == "none":
        return heads
    angles = rotary_angles(positions.to(heads.device), heads.shape[-1], semantics)
    return turn_heads(heads, angles, semantics)


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
    """The channels that are turned together: int64 ``[R/2]`` both, empty without a rotation."""
    half = rotary_size(head_size, semantics) // 2
    pairs = torch.arange(half)
    if semantics.rotary == "halves":
        return pairs, pairs + half
    return 2 * pairs, 2 * pairs + 1


def rotary_size(head_size: int, semantics: Semantics) -> int:
    """How many channels R of a head are turned: the largest even number within the fraction."""
    if semantics.rotary == "none":
        return 0
    # As users compute it: int(0.3 * 10) is 3, though 0.3 is a little less than three tenths.
    return int(head_size * semantics.rotary_fraction) // 2 * 2


def rotary_angles(positions: Tensor, head_size: int, semantics: Semantics) -> Tensor:
    """The angle of each pair at each of ``positions [L]``, in radians: float64 ``[L, R/2]``."""
    return positions.double()[:, None] * rotary_frequencies(head_size, semantics).to(
        positions.device
    )


def rotary_frequencies(head_size: int, semantics: Semantics) -> Tensor:
    """The angle that one position adds to each pair: float64 ``[R/2]``."""
    size = rotary_size(head_size, semantics)
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / max(size, 1)
    return float(semantics.rotary_base) ** -exponents
