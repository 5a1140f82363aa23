"""Sums of exponentials in which the keys count that fill up the last tile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .moves import TILES
from .operator import Operator

_TILES: Final = (*TILES, 256)


def paddings() -> Iterator[Operator]:
    """Keys of a logit of zero, or of a score far below the softcap, and with values of zero."""
    for size in _TILES:
        words = f"for each key that fills up the last tile of {size}"
        yield Operator(f"made with a logit of zero {words}", partial(_with_zeros, size=size))
        capped = partial(_with_capped, size=size)
        yield Operator(f"made with a logit of minus the softcap {words}", capped)


def _with_zeros(total: Tensor, largest: Tensor, sizes: golden.Sizes, *, size: int) -> Tensor:
    return _padded(total, -largest, sizes, size)


def _with_capped(
    total: Tensor, largest: Tensor, sizes: golden.Sizes, softcap: float | None, *, size: int
) -> Tensor:
    if softcap is None:
        msg = "there is no softcap"
        raise ValueError(msg)
    return _padded(total, -softcap - largest, sizes, size)


def _padded(total: Tensor, exponent: Tensor, sizes: golden.Sizes, size: int) -> Tensor:
    lacking = -sizes.key_length % size
    return total + lacking * torch.exp(exponent) if lacking else total
