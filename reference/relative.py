"""Relative positions by a table: a bias for each head and each bucket of distances.

clipped     bucket ``min(max(j - i, -m), m) + m`` of ``2 m + 1``        Shaw et al. 2018, equation 3
t5          half of the buckets for keys behind a query, half for those ahead; small distances have
            a bucket each, larger ones share buckets in a geometric sequence   Raffel et al. 2020
t5-causal   all buckets for keys behind the query; those ahead have the bucket of distance zero
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .checks import check_argument
from .semantics import Semantics


def relative_buckets(ahead: Tensor, count: int, semantics: Semantics) -> Tensor:
    """The bucket of each pair, int64, by the places from query to key; ``count`` is all buckets.

    The logarithms are in float32, as in the authors' code.
    """
    if semantics.relative == "clipped":
        most = count // 2
        return ahead.clamp(-most, most) + most
    first = torch.zeros_like(ahead)
    if semantics.relative == "t5":
        count //= 2
        first, distance = first + count * (ahead > 0), ahead.abs()
    else:
        distance = (-ahead).clamp_min(0)
    exact = count // 2
    growth = torch.log(distance.clamp_min(1).float() / exact)
    growth = growth / math.log(semantics.relative_distance / exact) * (count - exact)
    far = (exact + growth.long()).clamp_max(count - 1)
    return first + torch.where(distance < exact, distance, far)


def relative_bias(buckets: Tensor, table: Tensor) -> Tensor:
    """The bias ``[1 or B, H, Lq, Lk]`` of buckets ``[Lq, Lk]`` or ``[B, 1, Lq, Lk]``."""
    placed = buckets.dim() > len("QK")
    entries = table[buckets.squeeze(-3) if placed else buckets.unsqueeze(0)]
    return entries.movedim(-1, -3)


def check_table(table: Tensor, semantics: Semantics) -> None:
    """Require as many rows as a point has buckets; raises ValueError."""
    rows, kind = table.shape[0], semantics.relative
    if kind == "none":  # there nothing goes by the table
        return
    if kind == "clipped":
        fits, wanted = rows % 2 == 1, "an odd number of rows, for distances from -m to m"
    else:
        of_side = rows // 2 if kind == "t5" else rows
        fits = of_side > 1 and (kind != "t5" or rows % 2 == 0)
        fits = fits and of_side // 2 < semantics.relative_distance
        wanted = "two or more rows a side, fewer than twice relative_distance"
    check_argument(fits, "relative_table", f"has {rows} rows: it needs {wanted}")
