"""Changes of tables of which key a query attends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .keys import kinds_of_keys
from .moves import TILES
from .operator import Operator, axes_of, in_words
from .parts import PARTS, Part, filled
from .places import causal_tables, window_tables

_CHANGES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("left out", torch.ones_like),
    ("inverted", torch.logical_not),
    ("false for every key", torch.zeros_like),
)


def tables(stage: str, axes: str) -> Iterator[Operator]:
    """Changes of a table with some axes."""
    for words, change in _CHANGES:
        yield Operator(words, change)
    for noun, along in axes_of(axes, pairs=True):
        for words, part in PARTS:
            for verb, value in (("false", False), ("true", True)):
                change = along(partial(_set, part=part, value=value))
                yield Operator(f"{verb} for {in_words(words, noun)}", change)
    if axes.endswith("QK"):
        yield from kinds_of_keys(*(("false", "true") if stage == "admitted" else ("true",)))
    yield from {
        "by_causality": causal_tables,
        "by_window": window_tables,
        "by_mask": _masks,
        "admitted": _joined,
    }.get(stage, lambda: iter(()))()


def _set(table: Tensor, axis: int, *, part: Part, value: bool) -> Tensor:
    if table.shape[axis] == 1:
        msg = "a table that is the same at every place has no parts"
        raise ValueError(msg)
    return filled(part, value)(table, axis)


# What a mask may be read as, along its keys.
_READ: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("true up to the first key that it hides", lambda t: t.cumprod(-1).bool()),
    ("true from the first key on that it keeps", lambda t: t.cumsum(-1) > 0),
    (
        "true up to the last key that it keeps",
        lambda t: t.flip(-1).cumsum(-1).flip(-1) > 0,
    ),
    (
        "true behind the last key that it hides",
        lambda t: t.flip(-1).cumprod(-1).bool().flip(-1),
    ),
)
_OTHERS: Final = (("query", -2), ("head", -3), ("batch item", -4))


def _masks() -> Iterator[Operator]:
    for words, change in _READ:
        yield Operator(words, change)
    for noun, axis in _OTHERS:
        yield Operator(f"what it keeps for some {noun}", partial(_any, axis=axis))
        yield Operator(f"what it keeps for every {noun}", partial(_all, axis=axis))
    for size in TILES[2:]:
        said = f"those of the key at the same place of the tile of {size} before"
        yield Operator(said, partial(_of_tile_before, size=size))
    yield Operator("moved back by the number of cached keys", lambda t, past: t.roll(-past, -1))
    for noun, axis in (("batch items", -4), ("heads", -3)):
        yield Operator(f"with {noun} and as many queries exchanged", partial(_exchanged, axis=axis))


def _any(table: Tensor, *, axis: int) -> Tensor:
    return table.any(axis, keepdim=True).expand_as(table)


def _all(table: Tensor, *, axis: int) -> Tensor:
    return table.all(axis, keepdim=True).expand_as(table)


def _of_tile_before(table: Tensor, *, size: int) -> Tensor:
    index = torch.arange(table.shape[-1])
    return table.index_select(-1, torch.where(index < size, index, index - size))


def _exchanged(table: Tensor, *, axis: int) -> Tensor:
    if table.shape[axis] != table.shape[-2]:
        msg = f"{table.shape[axis]} places are not exchanged with {table.shape[-2]}"
        raise ValueError(msg)
    return table.transpose(axis, -2)


def _joined() -> Iterator[Operator]:
    """Other ways to join what mask, causality and window admit."""
    yield Operator(
        "true where the mask admits a key, or causality and window do",
        lambda table, by_mask, structure, kept: (
            table if kept is None else (by_mask | structure).expand_as(table)
        ),
    )
    yield Operator(
        "true where causality and the mask or the window admit a key",
        lambda table, by_mask, by_causality, by_window, kept: (
            table if kept is None else ((by_mask | by_window) & by_causality).expand_as(table)
        ),
    )
    yield Operator(
        "true where the mask and causality or window admit a key",
        lambda table, by_mask, by_causality, by_window: (
            (by_mask & (by_causality | by_window)).expand_as(table)
        ),
    )
    yield Operator(
        "true where the mask hides a key, and causality or window too",
        lambda table, by_mask, structure: table | (~by_mask & ~structure),
    )
    for words, behind in (("behind the last key", True), ("up to the last key", False)):
        for end in ("first", "last"):
            hidden = partial(_of_places, behind=behind, from_last=end == "last")
            said = f"false for queries whose place, counted from the {end} key, lies {words}"
            yield Operator(f"{said} that the mask keeps", hidden)
    yield Operator(
        "false for keys after the query, where the last query stands at the last key that the mask "
        "keeps",
        _after_kept_length,
    )


def _kept_length(by_mask: Tensor, table: Tensor) -> Tensor:
    """How many keys there are up to the last that the mask keeps: ``[B, H, Lq, 1]``."""
    kept = by_mask.expand_as(table)
    return (torch.arange(1, table.shape[-1] + 1) * kept).amax(-1, keepdim=True)


def _of_places(table: Tensor, by_mask: Tensor, *, behind: bool, from_last: bool) -> Tensor:
    queries, keys = table.shape[-2:]
    place = torch.arange(queries)[:, None] + (keys - queries if from_last else 0)
    return table & ((place >= _kept_length(by_mask, table)) != behind)


def _after_kept_length(table: Tensor, by_mask: Tensor) -> Tensor:
    queries, keys = table.shape[-2:]
    place = torch.arange(queries)[:, None] - queries + _kept_length(by_mask, table)
    return table & (torch.arange(keys) <= place)
