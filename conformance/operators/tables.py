"""Changes of tables of which key a query attends, and of the places that keys have for queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .moves import TILES
from .operator import PLACES, Operator, axis_of

# How many keys or queries at an end a loop may miss.
_FEW: Final = (1, 2, 3)
_OFFSETS: Final = (1, -1, 2, -2)
_CHANGES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("left out", torch.ones_like),
    ("inverted", torch.logical_not),
    ("false for every key", torch.zeros_like),
)
Part = Callable[[Tensor, int], Tensor]


def _first(number: int) -> Part:
    return lambda index, _count: index < number


def _last(number: int) -> Part:
    return lambda index, count: index >= count - number


def _past_whole(tile: int) -> Part:
    return lambda index, count: index >= count // tile * tile


def _past(number: int) -> Part:
    return lambda index, _count: index >= number


def _second_tiles(tile: int) -> Part:
    return lambda index, _count: index // tile % 2 == 1


def _last_of_tiles(tile: int) -> Part:
    return lambda index, _count: index % tile == tile - 1


def _first_of_tiles(tile: int) -> Part:
    return lambda index, _count: (index % tile == 0) & (index > 0)


# Parts of an axis, in words and by the index of each place and their number.
_PARTS: Final[tuple[tuple[str, Part], ...]] = (
    ("the first {}", _first(1)),
    ("the last {}", _last(1)),
    *((f"the first {n} {{}}s", _first(n)) for n in _FEW[1:]),
    *((f"the last {n} {{}}s", _last(n)) for n in _FEW[1:]),
    ("all {}s but the first", lambda index, _count: index > 0),
    ("all {}s but the last", lambda index, count: index < count - 1),
    ("every second {}", lambda index, _count: index % 2 == 1),
    ("every second {} from the first on", lambda index, _count: index % 2 == 0),
    ("the second half of the {}s", lambda index, count: index >= count // 2),
    ("the first half of the {}s", lambda index, count: index < count // 2),
    *((f"{{}}s past whole tiles of {n}", _past_whole(n)) for n in TILES),
    *((f"{{}}s past the first {n}", _past(n)) for n in TILES[2:]),
    *((f"every second tile of {n} {{}}s", _second_tiles(n)) for n in TILES),
    *((f"the last {{}} of each tile of {n}", _last_of_tiles(n)) for n in TILES),
    *((f"the first {{}} of each tile of {n} but the first", _first_of_tiles(n)) for n in TILES),
)


def tables(axes: str, *, of_places: bool = False) -> Iterator[Operator]:
    """Changes of a table with some axes, or of places, which are whole numbers."""
    if of_places:
        for offset in _OFFSETS:
            words = f"moved by {offset} {'place' if abs(offset) == 1 else 'places'}"
            yield Operator(words, partial(_moved, offset=offset))
        yield Operator("negated", torch.neg)
        yield Operator("without their sign", torch.abs)
        yield Operator("all zero", torch.zeros_like)
        for size in TILES:
            yield Operator(f"counted in tiles of {size}", partial(_in_tiles, size=size))
        return
    for words, change in _CHANGES:
        yield Operator(words, change)
    for letter in filter(PLACES.get, dict.fromkeys(axes)):
        axis = axis_of(axes, letter)
        for words, part in _PARTS:
            for verb, value in (("false", False), ("true", True)):
                changed = partial(_set, axis=axis, part=part, value=value)
                yield Operator(f"{verb} for {words.format(PLACES[letter])}", changed)


def _moved(result: Tensor, *, offset: int) -> Tensor:
    return result + offset


def _in_tiles(result: Tensor, *, size: int) -> Tensor:
    return result.div(size, rounding_mode="floor") * size


def _set(result: Tensor, *, axis: int, part: Part, value: bool) -> Tensor:
    count = result.shape[axis]
    if count == 1:
        msg = "a table that is the same at every place has no parts"
        raise ValueError(msg)
    chosen = part(torch.arange(count), count)
    return result.masked_fill(chosen.reshape(-1, *(1,) * (-axis - 1)), value)
