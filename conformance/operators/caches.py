"""Changes of the keys and values of a cache alone, and of the heads that share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
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
    """Moves and roundings of cached keys or values, or of new ones, beside those of the others."""
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


def _keys(values: Tensor, turned_key: Tensor, past: int) -> Tensor:
    return torch.cat([turned_key[..., :past, :], values[..., past:, :]], dim=-2)


def _values(keys: Tensor, value_heads: Tensor, past: int) -> Tensor:
    return torch.cat([value_heads[..., :past, :], keys[..., past:, :]], dim=-2)


# The key/value head that query head h reads, of their numbers and that of query heads.
_GROUPINGS: Final[tuple[tuple[str, Callable[[Tensor, int, int], Tensor]], ...]] = (
    ("h // their number, or the last", lambda h, _of, kv: (h // kv).clamp_max(kv - 1)),
    ("h // their number, modulo it", lambda h, _of, kv: h // kv % kv),
    ("(h + 1) // group, or the first", lambda h, of, kv: (h + 1) // (of // kv) % kv),
    (
        "(h + 1) // group, at most the last",
        lambda h, of, kv: ((h + 1) // (of // kv)).clamp_max(kv - 1),
    ),
    ("(h - 1) // group, or the last", lambda h, of, kv: (h - 1) // (of // kv) % kv),
    ("h * their number / the query heads, rounded up", lambda h, of, kv: -(-h * kv // of) % kv),
    (
        "h * their number / the query heads, rounded up, or the last",
        lambda h, of, kv: (-(-h * kv // of)).clamp_max(kv - 1),
    ),
    ("h * group, modulo their number", lambda h, of, kv: h * (of // kv) % kv),
)


def groupings(_axes: str) -> Iterator[Operator]:
    """Keys or values of each query head that are those of another key/value head."""
    for words, order in _GROUPINGS:
        said = f"those of key/value head {words}"
        yield Operator(said, partial(_regrouped, order=order), misplaces=True)


def _regrouped(
    result: Tensor, sizes: golden.Sizes, *, order: Callable[[Tensor, int, int], Tensor]
) -> Tensor:
    heads, shared = result.shape[-3], max(sizes.num_kv_heads, 1)
    if heads % shared or heads == shared:
        msg = f"{heads} heads are no groups that share {shared} key/value heads"
        raise ValueError(msg)
    read = order(torch.arange(heads), heads, shared)
    return result.index_select(-3, read * (heads // shared))
