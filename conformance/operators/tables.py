"""Changes of tables that say which key a query attends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .keys import kinds_of_keys
from .moves import TILES
from .operator import Operator, axes_of, insert_place
from .parts import PARTS, filled
from .places import causal_tables, window_tables

_CHANGES: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("left out", torch.ones_like),
    ("inverted", torch.logical_not),
    ("false for every key", torch.zeros_like),
)


def tables(stage: str, axes: str) -> Iterator[Operator]:
    """Yield changes of a table with given axes."""
    for words, change in _CHANGES:
        yield Operator(words, change)
    for noun, along in axes_of(axes, pairs=True):
        for words, part in PARTS:
            for verb, value in (("false", False), ("true", True)):
                marked = along(filled(part, value))
                yield Operator(f"{verb} for {insert_place(words, noun)}", marked)
    if axes.endswith("QK"):
        yield from kinds_of_keys(*(("false", "true") if stage == "admitted" else ("true",)))
    yield from {
        "by_causality": causal_tables,
        "by_window": window_tables,
        "by_mask": _masks,
        "admitted": _joined,
    }.get(stage, lambda: iter(()))()


_ZEROS: Final[tuple[tuple[str, Callable[[Tensor], Tensor]], ...]] = (
    ("whose channels add up to zero", lambda heads: heads.sum(dim=-1) == 0.0),
    ("of zeros alone", lambda heads: (heads == 0.0).all(dim=-1)),
)


def guessed_from_values() -> Iterator[Operator]:
    """Yield tables that hide keys by their values: zeros are taken for padding."""
    for words, are in _ZEROS:
        for role in ("key", "value"):
            hidden = golden.Rewired(partial(_hidden_heads, are=are), ("", f"shared_{role}"))
            yield Operator(f"false for {role}s {words}", hidden)
    yield Operator(
        "false where the dot product is zero", lambda table, products: table & (products != 0.0)
    )
    yield Operator(
        "false where the dot product is not positive",
        lambda table, products: table & (products > 0.0),
    )


def _hidden_heads(table: Tensor, heads: Tensor, *, are: Callable[[Tensor], Tensor]) -> Tensor:
    return table & ~are(heads).unsqueeze(-2)


def outputs_guessed_from_queries() -> Iterator[Operator]:
    """Yield outputs that are zero for queries taken for padding."""
    for words, are in _ZEROS:
        yield Operator(f"zero for queries {words}", partial(_left_out, are=are))


def _left_out(output: Tensor, query: Tensor, *, are: Callable[[Tensor], Tensor]) -> Tensor:
    return output.masked_fill(are(query).unsqueeze(-1), 0.0)


# Wrong readings of a mask along its keys.
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
    for words, least in (("a signed byte", 128), ("a byte", 0)):
        said = f"true for as many keys as {words} holds of the number of those that it keeps"
        yield Operator(said, partial(_wrap_in_byte, least=least))
    for own, from_last in _OWN:
        of_queries = partial(_own_entries, from_last=from_last)
        yield Operator(f"what it says of the query's own {own.rstrip(',')}", of_queries)
    yield from mask_moves()


def mask_moves() -> Iterator[Operator]:
    """Yield other places at which a mask may be read."""
    for size in TILES[2:]:
        said = f"those of the key at the same place of the tile of {size} before"
        yield Operator(said, partial(_read_tile_before, size=size))
    yield Operator("moved by the number of cached keys", lambda t, past: t.roll(past, -1))
    yield Operator("read with batch items and heads exchanged", _read_exchanged)
    for noun, axis in (("batch items", -4), ("heads", -3)):
        yield Operator(f"with {noun} and as many queries exchanged", partial(_exchanged, axis=axis))


def _any(table: Tensor, *, axis: int) -> Tensor:
    return table.any(axis, keepdim=True).expand_as(table)


def _all(table: Tensor, *, axis: int) -> Tensor:
    return table.all(axis, keepdim=True).expand_as(table)


def _wrap_in_byte(table: Tensor, *, least: int) -> Tensor:
    """Return a table of lengths stored in eight bits, from minus ``least`` on."""
    index, count = torch.arange(table.shape[-1]), table.sum(-1, keepdim=True)
    if not torch.equal(table, index < count):
        msg = "a table of keys that are not the first ones has no lengths"
        raise ValueError(msg)
    return index < (count + least) % 256 - least


def _read_tile_before(table: Tensor, *, size: int) -> Tensor:
    index = torch.arange(table.shape[-1])
    return table.index_select(-1, torch.where(index < size, index, index - size))


def _read_exchanged(table: Tensor) -> Tensor:
    return table.transpose(-4, -3).reshape(table.shape)


def _exchanged(table: Tensor, *, axis: int) -> Tensor:
    if table.shape[axis] != table.shape[-2]:
        msg = f"{table.shape[axis]} places are not exchanged with {table.shape[-2]}"
        raise ValueError(msg)
    return table.transpose(axis, -2)


def _joined() -> Iterator[Operator]:
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
            by_mask & (by_causality | by_window)
        ).expand_as(table),
    )
    yield Operator(
        "true where the mask hides a key, and causality or window too",
        lambda table, by_mask, structure: table | (~by_mask & ~structure),
    )
    yield from lost_queries("false")


# Where a query stands among the keys: in words, and whether it is counted from the last key.
_OWN: Final = (("index", False), ("place, counted from the last key,", True))


def lost_queries(verb: str) -> Iterator[Operator]:
    """Yield the loss of queries that a mask of keys hides, as if it applied to queries."""
    for own, from_last in _OWN:
        lost = partial(_lose_hidden_queries, from_last=from_last)
        yield Operator(f"{verb} for queries whose own {own} the mask hides", lost)


def lost_rows() -> Iterator[Operator]:
    """Yield rows that are wrongly taken to have no keys."""
    yield from lost_queries("zero")
    words = "zero for queries from which the first half of the keys is hidden"
    yield Operator(words, _lose_first_half)


def _lose_first_half(result: Tensor, attended: Tensor) -> Tensor:
    half = attended[..., : attended.shape[-1] // 2]
    return result.masked_fill(~half.any(-1, keepdim=True), 0.0)


def _lose_hidden_queries(
    result: Tensor, by_mask: Tensor, kept: Tensor | None, *, from_last: bool
) -> Tensor:
    if kept is None:
        return result
    table = by_mask.expand(*by_mask.shape[:-2], *result.shape[-2:])
    return result.masked_fill(~_own_entries(table, from_last=from_last), 0)


def _own_entries(table: Tensor, *, from_last: bool) -> Tensor:
    queries, keys = table.shape[-2:]
    place = torch.arange(queries) + (keys - queries if from_last else 0)
    inside = (place >= 0) & (place < keys)
    own = place.clamp(0, max(keys - 1, 0))[:, None].expand(*table.shape[:-1], 1)
    return (table.gather(-1, own) & inside[:, None]).expand_as(table)
