"""Attention with linear biases: the farther a key, the less it counts (Press et al. 2022).

Head h of n, a power of two, takes ``2^(-8 (h + 1) / n)`` off a logit for each position between
query and key. For other n the slopes of the next lower power of two come first, then every second
slope of twice that power, as in the authors' code.
"""

from __future__ import annotations

import torch
from torch import Tensor


def alibi_slopes(num_heads: int) -> Tensor:
    """The slope of each head: float64 ``[H]``."""
    power = 2 ** (max(num_heads, 1).bit_length() - 1)
    finer = _geometric(2 * power)[::2]
    return torch.cat([_geometric(power), finer])[:num_heads]


def _geometric(count: int) -> Tensor:
    """``2^(-8/n), 2^(-16/n) .. 2^-8``."""
    return 2.0 ** (-8.0 * torch.arange(1, count + 1, dtype=torch.float64) / count)


def distances(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """The distances of queries ``[.., Lq]`` and keys ``[.., Lk]``: float64 ``[.., Lq, Lk]``."""
    return (query_positions[..., None] - key_positions[..., None, :]).abs().double()


def alibi_bias(
    num_heads: int, query_positions: Tensor, keys: int | Tensor, slopes: Tensor | None = None
) -> Tensor:
    """The bias added to the logits, float64 ``[1 or B, H, Lq, Lk]``.

    Queries stand at ``[Lq]`` or ``[B, 1, Lq]``; ``keys`` is their number, or ``[Lk]`` or ``[B, 1,
    Lk]``. Given ``slopes [B or 1, H]`` replace the formula.
    """
    if isinstance(keys, int):
        keys = torch.arange(keys, device=query_positions.device)
    distance = distances(query_positions, keys)
    slopes = alibi_slopes(num_heads).unsqueeze(0) if slopes is None else slopes
    return -slopes.to(distance.device)[..., None, None] * distance
