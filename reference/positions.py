"""Sinusoidal position encoding, in float64.

    P[i, 2j]   = sin(i / 10000^(2j/d))
    P[i, 2j+1] = cos(i / 10000^(2j/d))

Vaswani et al. 2017, section 3.5, for position i and width d.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_argument

BASE = 10000.0


def frequencies(width: int) -> Tensor:
    """The angle in radians that one position adds to each pair of channels: ``[width/2]``."""
    check_argument(width >= 0 and width % 2 == 0, "width", f"is {width}, not an even number")
    return BASE ** -(torch.arange(0, width, 2, dtype=torch.float64) / max(width, 1))


def sinusoidal_positions(length: int, width: int, *, offset: int = 0) -> Tensor:
    """The encoding of positions ``offset .. offset + length``: float64 ``[length, width]``.

    Raises ValueError for an odd width (sines and cosines come in pairs) or a negative length.
    """
    check_argument(length >= 0, "length", f"is {length}, which is negative")
    position = torch.arange(offset, offset + length, dtype=torch.float64)
    angles = position[:, None] * frequencies(width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(length, width)


def rotate(encoding: Tensor, steps: float) -> Tensor:
    """Move an encoding ``[..., width]`` by some positions: rotate each pair by ``steps * w_j``.

    ``sin(a + b)`` and ``cos(a + b)`` are linear in ``sin a`` and ``cos a``, whatever ``a``: equal
    shifts are equal linear maps everywhere.
    """
    angle = steps * frequencies(encoding.shape[-1]).to(encoding.device)
    sine, cosine = encoding.double()[..., 0::2], encoding.double()[..., 1::2]
    moved_sine = sine * angle.cos() + cosine * angle.sin()
    moved_cosine = cosine * angle.cos() - sine * angle.sin()
    return torch.stack([moved_sine, moved_cosine], dim=-1).reshape(encoding.shape)
