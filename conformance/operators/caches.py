"""Changes of the keys and values of a cache alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .moves import main_moves
from .operator import Operator
from .roundings import format_rounding, integer_rounding

Change = Callable[[Tensor], Tensor]
_STORED: Final[tuple[tuple[str, Change], ...]] = (
    ("zero", torch.zeros_like),
    ("multiplied by the scale of the head size", lambda t: t * max(t.shape[-1], 1) ** -0.5),
    *(
        (f"rounded to {name}", format_rounding(name))
        for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    ),
    ("rounded to int8 for each token and head", integer_rounding(127, (-1,))),
    ("rounded to int8 for each channel and head", integer_rounding(127, (-2,))),
    ("rounded to int8 together", integer_rounding(127, (-4, -3, -2, -1))),
)


def cached(axes: str) -> Iterator[Operator]:
    """Yield moves and roundings of cached keys or values alone, or of new ones alone."""
    for move in main_moves(axes):
        for part, of_cached in (("cached", True), ("new", False)):
            moved = partial(_change_part, change=move.change, of_cached=of_cached)
            words = f"{move.words}, {part} ones alone"
            yield Operator(words, moved, misplaces=move.misplaces)
    for words, change in _STORED:
        stored = partial(_change_part, change=change, of_cached=True)
        yield Operator(f"{words}, cached ones alone", stored)
    yield Operator("with the cached ones behind the new ones", _put_cached_last)
    if axes.endswith("V"):
        yield Operator("the keys, cached ones alone", _keys)
    else:
        yield Operator("the values, cached ones alone", _values)


def _change_part(result: Tensor, past: int, *, change: Change, of_cached: bool) -> Tensor:
    before, new = result[..., :past, :], result[..., past:, :]
    if not past:
        return result
    parts = (change(before), new) if of_cached else (before, change(new))
    return torch.cat(parts, dim=-2)


def _put_cached_last(result: Tensor, past: int) -> Tensor:
    return result.roll(-past, -2)


def _keys(values: Tensor, joined_key: Tensor, past: int) -> Tensor:
    return torch.cat([joined_key[..., :past, :], values[..., past:, :]], dim=-2)


def _values(keys: Tensor, value_heads: Tensor, past: int) -> Tensor:
    return torch.cat([value_heads[..., :past, :], keys[..., past:, :]], dim=-2)
