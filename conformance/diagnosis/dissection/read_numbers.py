"""Numbers that were read, put into words: constants, powers of sizes, else their digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ...base.geometry import Geometry


@dataclass(frozen=True)
class Number:
    """A number that was read, in words and as a function of the sizes of a call."""

    words: str
    value: Callable[[Geometry], float]


_CONSTANTS: Final[tuple[tuple[str, float], ...]] = (
    ("1", 1.0),
    ("-1", -1.0),
    ("2", 2.0),
    ("-2", -2.0),
    ("1/2", 0.5),
    ("3", 3.0),
    ("4", 4.0),
    ("1/4", 0.25),
    ("ln 2", math.log(2.0)),
    ("1/ln 2", 1.0 / math.log(2.0)),
)
_SIZES: Final[tuple[tuple[str, Callable[[Geometry], int]], ...]] = (
    ("the head size", lambda sizes: sizes.head_size),
    ("one more than the head size", lambda sizes: sizes.head_size + 1),
    ("one less than the head size", lambda sizes: sizes.head_size - 1),
    ("twice the head size", lambda sizes: 2 * sizes.head_size),
    ("the value head size", lambda sizes: sizes.value_head_size),
    ("the number of heads", lambda sizes: sizes.num_heads),
    ("the number of key/value heads", lambda sizes: sizes.num_kv_heads),
    ("the number of keys", lambda sizes: sizes.key_length),
    ("the number of queries", lambda sizes: sizes.query_length),
    ("the batch size", lambda sizes: sizes.batch),
    ("the width of all heads", lambda sizes: sizes.num_heads * sizes.head_size),
    ("the group size", lambda sizes: sizes.num_heads // max(sizes.num_kv_heads, 1)),
)
_POWERS: Final = ((0.5, "√({})"), (-0.5, "1/√({})"), (1.0, "{}"), (-1.0, "1/{}"))
# Logits of long sequences are multiplied by the logarithm of their length (Su, 2021).
_LOGARITHMS: Final = ("the number of keys", "the number of queries")


def numbers(read: float, sizes: Geometry, same: float) -> Iterator[Number]:
    """What a number that was read at some sizes may be, closed forms first.

    ``same`` is the part of a number by which two readings of it may differ.
    """

    def near(value: float) -> bool:
        return abs(value - read) <= 2.0 * same * abs(value)

    yield from (_constant(words, value) for words, value in _CONSTANTS if near(value))
    for words, size in _SIZES:
        for power, form in _POWERS:
            for sign in (1.0, -1.0):
                if size(sizes) > 1 and near(sign * math.pow(size(sizes), power)):
                    yield _of_size("-" * (sign < 0) + form.format(words), size, power, sign)
        if words in _LOGARITHMS and size(sizes) > 1 and near(math.log(size(sizes))):
            yield _logarithm_of(words, size)
    yield _constant(f"{read:.4g}", read)


def logarithms(read: float, sizes: Geometry) -> Iterator[Number]:
    """A number that was read as a multiple of the logarithm of a length, which may be any."""
    for words, size in _SIZES:
        if words in _LOGARITHMS and size(sizes) > 1:
            yield _multiple_of_logarithm(read / math.log(size(sizes)), words, size)


def _multiple_of_logarithm(factor: float, words: str, size: Callable[[Geometry], int]) -> Number:
    return Number(f"{factor:.4g} ln({words})", lambda sizes: factor * math.log(max(size(sizes), 1)))


def _logarithm_of(words: str, size: Callable[[Geometry], int]) -> Number:
    return Number(f"ln({words})", lambda sizes: math.log(max(size(sizes), 1)))


def _constant(words: str, value: float) -> Number:
    return Number(words, lambda _sizes: value)


def _of_size(words: str, size: Callable[[Geometry], int], power: float, sign: float) -> Number:
    return Number(words, lambda sizes: sign * math.pow(size(sizes), power))


def roundest(least: float, most: float) -> float:
    """The number with the fewest digits that is above one and at most another, both positive."""
    digits = -math.floor(math.log10(most))
    while True:
        number = math.floor(most * 10.0**digits) / 10.0**digits
        if number > least:
            return number
        digits += 1
