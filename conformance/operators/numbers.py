"""Factors of a result, made of the sizes of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from torch import Tensor

from .._golden import golden
from .operator import Operator

Sized = Callable[[Any], int]


def _group(sizes: Any) -> int:
    return int(sizes.num_heads // max(sizes.num_kv_heads, 1))


# Numbers made of sizes, in words; of ``golden.Sizes`` and of a ``Geometry`` alike.
SIZES: Final[tuple[tuple[str, Sized], ...]] = (
    ("the head size", lambda sizes: sizes.head_size),
    ("one more than the head size", lambda sizes: sizes.head_size + 1),
    ("one less than the head size", lambda sizes: sizes.head_size - 1),
    ("twice the head size", lambda sizes: 2 * sizes.head_size),
    ("the root of the head size, rounded down", lambda sizes: math.isqrt(sizes.head_size)),
    (
        "the root of the head size, rounded up",
        lambda sizes: math.isqrt(max(sizes.head_size - 1, 0)) + 1,
    ),
    ("the value head size", lambda sizes: sizes.value_head_size),
    ("the number of heads", lambda sizes: sizes.num_heads),
    ("the number of key/value heads", lambda sizes: sizes.num_kv_heads),
    ("the number of keys", lambda sizes: sizes.key_length),
    ("the number of queries", lambda sizes: sizes.query_length),
    ("the batch size", lambda sizes: sizes.batch),
    ("the width of all heads", lambda sizes: sizes.num_heads * sizes.head_size),
    ("the width of all key/value heads", lambda sizes: sizes.num_kv_heads * sizes.head_size),
    ("the group size", _group),
    ("the width of the heads of a group", lambda sizes: sizes.head_size * _group(sizes)),
)
_POWERS: Final = (
    ("multiplied by the root of", 0.5),
    ("divided by the root of", -0.5),
    ("multiplied by", 1.0),
    ("divided by", -1.0),
)


_NUMBERS: Final = (
    ("negated", -1.0),
    ("doubled", 2.0),
    ("halved", 0.5),
    ("multiplied by log2(e)", 1.0 / math.log(2.0)),
    ("multiplied by ln(2)", math.log(2.0)),
)


def multiples(_axes: str) -> Iterator[Operator]:
    """Yield results of any axes times a number, a size, its root or the scale."""
    for words, number in _NUMBERS:
        yield Operator(words, partial(_times_number, number=number))
    for noun, size in SIZES:
        for words, power in _POWERS:
            yield Operator(f"{words} {noun}", partial(_times, size=size, power=power))
    yield Operator("multiplied by the scale", lambda result, scale: result * scale)
    yield Operator("divided by the scale", lambda result, scale: result / scale)


def _times_number(result: Tensor, *, number: float) -> Tensor:
    return number * result


def _times(result: Tensor, sizes: golden.Sizes, *, size: Sized, power: float) -> Tensor:
    number: float = float(max(size(sizes), 1)) ** power
    return result * number
