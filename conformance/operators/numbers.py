"""Numbers made of the sizes of a call, by which a result may be multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from torch import Tensor

from .._golden import golden
from .operator import Operator

SIZES: Final[tuple[tuple[str, Callable[[golden.Sizes], int]], ...]] = (
    ("the head size", lambda sizes: sizes.head_size),
    ("the value head size", lambda sizes: sizes.value_head_size),
    ("the number of heads", lambda sizes: sizes.num_heads),
    ("the number of key/value heads", lambda sizes: sizes.num_kv_heads),
    ("the heads of a group", lambda sizes: sizes.num_heads // sizes.num_kv_heads),
    ("the width of all heads", lambda sizes: sizes.num_heads * sizes.head_size),
    ("the number of keys", lambda sizes: sizes.key_length),
    ("the number of queries", lambda sizes: sizes.query_length),
    ("the number of batch items", lambda sizes: sizes.batch),
)
_POWERS: Final = (
    ("multiplied by the root of", 0.5),
    ("divided by the root of", -0.5),
    ("multiplied by", 1.0),
    ("divided by", -1.0),
)


def multiples(_axes: str) -> Iterator[Operator]:
    """Results, whatever their axes, multiplied or divided by a size, its root, or the scale."""
    for noun, size in SIZES:
        for words, power in _POWERS:
            yield Operator(f"{words} {noun}", partial(_times, size=size, power=power))
    yield Operator("multiplied by the scale", lambda result, scale: result * scale)
    yield Operator("divided by the scale", lambda result, scale: result / scale)


def _times(
    result: Tensor, sizes: golden.Sizes, *, size: Callable[[golden.Sizes], int], power: float
) -> Tensor:
    number: float = float(max(size(sizes), 1)) ** power
    return result * number
