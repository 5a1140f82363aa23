"""Masks with a structure of their own: the table that each makes, and the arguments that say it.

A table is bool ``[B or 1, H or 1, Lq, Lk]``, True where a query attends a key. Arguments are read
off a table, so that whatever changes a problem changes one thing alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Generator, Tensor

from ..base.geometry import Geometry
from .mask_patterns import PATTERNS

_EMPTY: Final = "empty-rows"
_MOST_SEGMENTS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Structure:
    """What a table is made for: sizes, the place of each query among the keys, a block's sizes."""

    geometry: Geometry
    alignment: str
    block_size: tuple[int, int]

    @property
    def ahead(self) -> Tensor:
        """How far each key lies ahead of each query: int64 ``[Lq, Lk]``."""
        return torch.arange(self.geometry.key_length) - self.places[:, None]

    @property
    def places(self) -> Tensor:
        """The key at which each query stands: int64 ``[Lq]``."""
        rows, columns = self.geometry.query_length, self.geometry.key_length
        first = columns - rows if self.alignment == "bottom-right" else 0
        return torch.arange(rows) + first


@dataclass(frozen=True, kw_only=True)
class StructuredMask:
    """A form of masks.

    shape
        The axes of its table, in letters.
    table
        Draws one of a pattern, of those in ``patterns`` or the likeliest for another.
    arguments
        The keywords of a call that say a table, with a batch axis where they have one.
    """

    shape: str
    table: Callable[[str, Structure, Generator], Tensor]
    arguments: Callable[[Tensor, Structure], dict[str, Any]]
    patterns: tuple[str, ...] = ("random", "padding", "full")


def _segments(pattern: str, structure: Structure, generator: Generator) -> Tensor:
    """Queries and keys with equal numbers attend: in stretches, or where random anywhere."""
    sizes = structure.geometry
    items, rows, columns = sizes.batch, sizes.query_length, sizes.key_length
    if not columns:
        return torch.zeros(items, 1, rows, columns, dtype=torch.bool)
    most = {"full": 1, "single": columns}.get(pattern, min(_MOST_SEGMENTS, columns))
    keys = torch.randint(most, (items, columns), generator=generator)
    if pattern != "random":
        keys = keys.sort(dim=-1).values
    places = structure.places.clamp(0, columns - 1).expand(items, -1)
    if pattern == "random" and rows != columns:
        places = torch.randint(columns, (items, rows), generator=generator)
    queries = keys.gather(1, places)
    if "empty" in pattern:
        queries = torch.where(torch.rand(items, rows, generator=generator) < 1 / 3, most, queries)
    return (queries[:, :, None] == keys[:, None, :]).unsqueeze(1)


def _segment_numbers(table: Tensor, _structure: Structure) -> dict[str, Any]:
    """Equal numbers for a query and its keys; what attends to nothing has one of its own."""
    rows, columns = table.shape[2:]
    table = table[:, 0]
    place = torch.arange(columns)
    first = torch.where(table, place, columns).amin(dim=-1) if columns else table.new_zeros(0)
    alone = columns + torch.arange(rows)
    queries = (
        torch.where(table.any(dim=-1), first, alone) if columns else alone.expand(len(table), rows)
    )
    owners = torch.where(table, queries[:, :, None], columns + rows)
    seen = owners.amin(dim=1) if rows else torch.full((len(table), columns), columns + rows)
    keys = torch.where(seen < columns, seen, columns + rows + place)
    numbers = [
        torch.unique(torch.cat(pair), return_inverse=True)[1]
        for pair in zip(queries, keys, strict=True)
    ]
    both = torch.stack(numbers) if numbers else torch.zeros(0, rows + columns, dtype=torch.int64)
    return {
        "query_segments": both[:, :rows].contiguous(),
        "key_segments": both[:, rows:].contiguous(),
    }


def _prefix(pattern: str, structure: Structure, generator: Generator) -> Tensor:
    """Every query attends the first keys, and behind them what is not ahead of it."""
    items, columns = structure.geometry.batch, structure.geometry.key_length
    lengths = torch.randint(1, max(columns, 1) + 1, (items, 1, 1, 1), generator=generator)
    if pattern in ("full", "single"):
        lengths = torch.full_like(lengths, columns if pattern == "full" else 1)
    return (torch.arange(columns) < lengths) | (structure.ahead <= 0)


def _prefix_lengths(table: Tensor, structure: Structure) -> dict[str, Any]:
    items = structure.geometry.batch
    none = torch.zeros(items, dtype=torch.int64)
    return {"prefix_lengths": table[:, 0, 0].sum(dim=-1) if table.shape[2] else none}


def _of_chunk(size: int, structure: Structure) -> Tensor:
    keys = torch.arange(structure.geometry.key_length).div(size, rounding_mode="floor")
    queries = structure.places.div(size, rounding_mode="floor")
    return (keys == queries[:, None])[None, None]


def _chunks(pattern: str, structure: Structure, generator: Generator) -> Tensor:
    """Queries attend the keys of the chunk in which they stand; chunks begin at the first key."""
    longest = max(structure.geometry.query_length, structure.geometry.key_length, 1)
    drawn = 1 + int(torch.randint(max(longest - 1, 1), (1,), generator=generator))
    return _of_chunk({"full": longest, "single": 1}.get(pattern, drawn), structure)


def _chunk(table: Tensor, structure: Structure) -> dict[str, Any]:
    longest = max(structure.geometry.query_length, structure.geometry.key_length, 1)
    sizes = range(1, longest + 1)
    return {
        "chunk": next((n for n in sizes if torch.equal(_of_chunk(n, structure), table)), longest)
    }


def _tree(pattern: str, structure: Structure, generator: Generator) -> Tensor:
    """The last keys are the queries, each of which attends itself, its ancestors and the cache."""
    sizes = structure.geometry
    items, rows, past = sizes.batch, sizes.query_length, sizes.key_length - sizes.query_length
    index = torch.arange(rows)
    drawn = (torch.rand(items, rows, generator=generator) * (index + 1)).long() - 1
    parents = {"full": (index - 1).expand(items, -1), "single": torch.full_like(drawn, -1)}.get(
        pattern, drawn
    )
    table = torch.ones(items, 1, rows, past + rows, dtype=torch.bool)
    family = torch.eye(rows, dtype=torch.bool).repeat(items, 1, 1)
    for row in range(1, rows):  # a parent stands before its children
        parent = parents[:, row]
        inherited = family[torch.arange(items), parent.clamp_min(0)]
        family[:, row] |= inherited & (parent >= 0)[:, None]
    table[:, 0, :, past:] = family
    return table


def _parents(table: Tensor, structure: Structure) -> dict[str, Any]:
    rows = structure.geometry.query_length
    family = table[:, 0, :, table.shape[-1] - rows :].tril(-1)
    index = torch.where(family, torch.arange(rows), -1)
    none = torch.zeros(len(table), 0, dtype=torch.int64)
    return {"parents": index.amax(dim=-1) if rows else none}


def _indices(pattern: str, structure: Structure, generator: Generator) -> Tensor:
    sizes = structure.geometry
    return PATTERNS[pattern]((sizes.batch, 1, sizes.query_length, sizes.key_length), generator)


def _key_indices(table: Tensor, _structure: Structure) -> dict[str, Any]:
    """The keys of each query, the last first, and -1 where it has fewer than another."""
    table = table[:, 0]
    columns = table.shape[-1]
    most = max(int(table.sum(dim=-1).max()) if table.numel() else 0, 1)
    places = torch.where(table, torch.arange(columns), -1).sort(dim=-1, descending=True).values
    padded = torch.nn.functional.pad(places, (0, max(most - columns, 0)), value=-1)
    return {"key_indices": padded[..., :most].to(torch.int32)}


def _blocks(pattern: str, structure: Structure, generator: Generator) -> Tensor:
    """Whole blocks of queries and keys attend; the last ones may be cut off."""
    sizes, (tall, wide) = structure.geometry, structure.block_size
    rows, columns = -(-sizes.query_length // tall), -(-sizes.key_length // wide)
    blocks = PATTERNS[pattern]((sizes.batch, sizes.num_heads, rows, columns), generator)
    table = blocks.repeat_interleave(tall, dim=2).repeat_interleave(wide, dim=3)
    return table[:, :, : sizes.query_length, : sizes.key_length]


def _block_mask(table: Tensor, structure: Structure) -> dict[str, Any]:
    tall, wide = structure.block_size
    return {"block_mask": table[:, :, ::tall, ::wide].contiguous()}


STRUCTURED_MASKS: Final[Mapping[str, StructuredMask]] = {
    "segments": StructuredMask(
        shape="B1QK",
        table=_segments,
        arguments=_segment_numbers,
        patterns=("random", "padding", "full", _EMPTY),
    ),
    "prefix": StructuredMask(shape="B1QK", table=_prefix, arguments=_prefix_lengths),
    "chunks": StructuredMask(shape="11QK", table=_chunks, arguments=_chunk),
    "tree": StructuredMask(shape="B1QK", table=_tree, arguments=_parents),
    "indices": StructuredMask(
        shape="B1QK",
        table=_indices,
        arguments=_key_indices,
        patterns=("random", "dense", "padding", "full", _EMPTY),
    ),
    "blocks": StructuredMask(
        shape="BHQK",
        table=_blocks,
        arguments=_block_mask,
        patterns=("random", "dense", "full", _EMPTY),
    ),
}

# The forms whose tables can leave a query without keys.
EMPTYING: Final = tuple(form for form, mask in STRUCTURED_MASKS.items() if _EMPTY in mask.patterns)
