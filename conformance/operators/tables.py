"""Changes of tables of which key a query attends, and of the places that keys have for queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .moves import TILES
from .operator import Operator, axes_of, in_words
from .parts import PARTS, Part, filled

_CHANGES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("left out", torch.ones_like),
    ("inverted", torch.logical_not),
    ("false for every key", torch.zeros_like),
)


def tables(axes: str, *, of_places: bool = False) -> Iterator[Operator]:
    """Changes of a table with some axes, or of places, which are whole numbers."""
    if of_places:
        yield Operator("negated", torch.neg)
        yield Operator("without their sign", torch.abs)
        for size in TILES:
            yield Operator(f"counted in tiles of {size}", partial(_in_tiles, size=size))
        return
    for words, change in _CHANGES:
        yield Operator(words, change)
    for noun, along in axes_of(axes, pairs=True):
        for words, part in PARTS:
            for verb, value in (("false", False), ("true", True)):
                change = along(partial(_set, part=part, value=value))
                yield Operator(f"{verb} for {in_words(words, noun)}", change)


def _in_tiles(result: Tensor, *, size: int) -> Tensor:
    return result.div(size, rounding_mode="floor") * size


def _set(table: Tensor, axis: int, *, part: Part, value: bool) -> Tensor:
    if table.shape[axis] == 1:
        msg = "a table that is the same at every place has no parts"
        raise ValueError(msg)
    return filled(part, value)(table, axis)
