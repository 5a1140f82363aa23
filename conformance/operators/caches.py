"""Changes of the keys and values of a cache alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .moves import main_moves
from .operator import Operator
from .roundings import to_format, to_integers

Change = Callable[[Tensor], Tensor]
_STORED: Final[tuple[tuple[str, Change], ...]] = (
    ("zero", torch.zeros_like),
    ("multiplied by the scale of the head size", lambda t: t * max(t.shape[-1], 1) ** -0.5),
    *(
        (f"rounded to {name}", to_format(name))
        for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    ),
    ("rounded to int8 for each token and head", to_integers(127, (-1,))),
    ("rounded to int8 for each channel and head", to_integers(127, (-2,))),
    ("rounded to int8 together", to_integers(127, (-4, -3, -2, -1))),
)


def cached(axes: str) -> Iterator[Operator]:
    """Yield moves and roundings of cached keys or values alone, or of new ones alone."""
    for move in main_moves(axes):
        for part, of_cached in (("cached", True), ("new", False)):
            moved = partial(_in_part, change=move.change, of_cached=of_cached)
            words = f"{move.words}, {part} ones alone"
            yield Operator(words, moved, misplaces=move.misplaces)
    for words, change in _STORED:
        stored = partial(_in_part, change=change, of_cached=True)
        yield Operator(f"{words}, cached ones alone", stored)
    yield Operator("with the cached ones behind the new ones", _behind)
    if axes.endswith("V"):
        yield Operator("the keys, cached ones alone", _keys)
    else:
        yield Operator("the values, cached ones alone", _values)


def _in_part(result: Tensor, past: int, *, change: Change, of_cached: bool) -> Tensor:
    before, new = result[..., :past, :], result[..., past:, :]
    if not past:
        return result
    parts = (change(before), new) if of_cached else (before, change(new))
    return torch.cat(parts, dim=-2)


def _behind(result: Tensor, past: int) -> Tensor:
    return result.roll(-past, -2)


def _keys(values: Tensor, joined_key: Tensor, past: int) -> Tensor:
    return torch.cat([joined_key[..., :past, :], values[..., past:, :]], dim=-2)


def _values(keys: Tensor, value_heads: Tensor, past: int) -> Tensor:
    return torch.cat([value_heads[..., :past, :], keys[..., past:, :]], dim=-2)
