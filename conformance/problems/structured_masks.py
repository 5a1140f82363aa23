"""Masks with a structure of their own: their tables, and the arguments that express them.

A table is bool ``[B or 1, H or 1, Lq, Lk]``, True where a query attends a key. Arguments are read
off a table, so a change of a problem changes the table alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Generator, Tensor

from ..base.geometry import Geometry
from ..declare.declaration import PADDED_QUERIES, Declaration
from .mask_patterns import PATTERNS

_EMPTY: Final = "empty-rows"
_MOST_SEGMENTS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The frame of a table: sizes, the place of each query among the keys, a block's sizes.

    ``grid`` are the rows and columns of a declared grid.
    """

    geometry: Geometry
    alignment: str
    block_size: tuple[int, int] = (1, 1)
    grid: tuple[int, int] | None = None

    @classmethod
    def declared(cls, declaration: Declaration, geometry: Geometry) -> Structure:
        """The frame of a problem of some sizes."""
        return cls(
            geometry=geometry,
            alignment=declaration.semantics.causal_alignment,
            block_size=declaration.block_size or (1, 1),
            grid=declaration.grid,
        )

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


Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StructuredMask:
    """A form of masks.

    draw
        Arguments of a pattern, from ``patterns``; for another pattern those of the likeliest.
    read
        The table made by arguments.
    arguments
        The arguments of a table, with a batch axis where they have one.
    pads
        Whether queries without keys are padding, which is no part of the call.
    """

    draw: Callable[[str, Structure, Generator], Arguments]
    read: Callable[[Arguments, Structure], Tensor]
    arguments: Callable[[Tensor, Structure], Arguments]
    patterns: tuple[str, ...] = ("random", "padding", "full")
    pads: bool = False

    def table(self, pattern: str, structure: Structure, generator: Generator) -> Tensor:
        """A table of a pattern."""
        return self.read(self.draw(pattern, structure, generator), structure)


def _draw_segments(pattern: str, structure: Structure, generator: Generator) -> Arguments:
    """Stretches of tokens with one number each; for "random" numbers are scattered."""
    sizes = structure.geometry
    items, rows, columns = sizes.batch, sizes.query_length, sizes.key_length
    most = {"full": 1, "single": max(columns, 1)}.get(pattern, max(min(_MOST_SEGMENTS, columns), 1))
    keys = torch.randint(most, (items, columns), generator=generator)
    if pattern != "random":
        keys = keys.sort(dim=-1).values
    if not columns:
        return {"query_segments": torch.zeros(items, rows), "key_segments": keys}
    places = structure.places.clamp(0, columns - 1).expand(items, -1)
    if pattern == "random" and rows != columns:
        places = torch.randint(columns, (items, rows), generator=generator)
    queries = keys.gather(1, places)
    if "empty" in pattern:
        queries = torch.where(torch.rand(items, rows, generator=generator) < 1 / 3, most, queries)
    return {"query_segments": queries, "key_segments": keys}


def _read_segments(given: Arguments, _structure: Structure) -> Tensor:
    queries, keys = given["query_segments"], given["key_segments"]
    table: Tensor = queries[:, :, None] == keys[:, None, :]
    return table.unsqueeze(1)


def _segments_of(table: Tensor, _structure: Structure) -> Arguments:
    """Equal numbers for a query and its keys; tokens that attend nothing get their own number."""
    table = table[:, 0]
    items, rows, columns = table.shape
    place, none = torch.arange(columns), columns + rows
    queries = (columns + torch.arange(rows)).expand(items, -1)
    keys = (none + place).expand(items, -1)
    if rows and columns:
        first = torch.where(table, place, none).amin(dim=-1)
        queries = torch.where(first < none, first, queries)
        owner = torch.where(table, queries[:, :, None], none).amin(dim=1)
        keys = torch.where(owner < none, owner, keys)
    both = torch.cat((queries, keys), dim=-1)
    ranks = [torch.unique(item, return_inverse=True)[1] for item in both]
    numbers = torch.stack(ranks) if ranks else both
    return {
        "query_segments": numbers[:, :rows].contiguous(),
        "key_segments": numbers[:, rows:].contiguous(),
    }


def _draw_prefix(pattern: str, structure: Structure, generator: Generator) -> Arguments:
    items, columns = structure.geometry.batch, structure.geometry.key_length
    lengths = torch.randint(1, max(columns, 1) + 1, (items,), generator=generator)
    if pattern in ("full", "single"):
        lengths = torch.full_like(lengths, columns if pattern == "full" else 1)
    return {"prefix_lengths": lengths}


def _read_prefix(given: Arguments, structure: Structure) -> Tensor:
    """Every query attends the prefix and, behind it, keys that are not ahead of the query."""
    keys = torch.arange(structure.geometry.key_length)
    inside: Tensor = keys < given["prefix_lengths"][:, None, None, None]
    return inside | (structure.ahead <= 0)


def _prefix_of(table: Tensor, structure: Structure) -> Arguments:
    none = torch.zeros(structure.geometry.batch, dtype=torch.int64)
    return {"prefix_lengths": table[:, 0, 0].sum(dim=-1) if table.shape[2] else none}


def _longest(structure: Structure) -> int:
    return max(structure.geometry.query_length, structure.geometry.key_length, 1)


def _draw_chunks(pattern: str, structure: Structure, generator: Generator) -> Arguments:
    longest = _longest(structure)
    drawn = 1 + int(torch.randint(max(longest - 1, 1), (1,), generator=generator))
    return {"chunk": {"full": longest, "single": 1}.get(pattern, drawn)}


def _read_chunks(given: Arguments, structure: Structure) -> Tensor:
    """Queries attend the keys of the chunk in which they stand; chunks begin at the first key."""
    keys = torch.arange(structure.geometry.key_length).div(given["chunk"], rounding_mode="floor")
    queries = structure.places.div(given["chunk"], rounding_mode="floor")
    return (keys == queries[:, None])[None, None]


def _chunk_of(table: Tensor, structure: Structure) -> Arguments:
    every = ({"chunk": size} for size in range(1, _longest(structure) + 1))
    fitting = (given for given in every if torch.equal(_read_chunks(given, structure), table))
    return next(fitting, {"chunk": _longest(structure)})


def _draw_tree(pattern: str, structure: Structure, generator: Generator) -> Arguments:
    """A parent stands before its children; the parent of a root is -1."""
    items, rows = structure.geometry.batch, structure.geometry.query_length
    index = torch.arange(rows)
    drawn = (torch.rand(items, rows, generator=generator) * (index + 1)).long() - 1
    if pattern == "full":
        drawn = (index - 1).expand(items, -1).clone()
    return {"parents": torch.full_like(drawn, -1) if pattern == "single" else drawn}


def _read_tree(given: Arguments, structure: Structure) -> Tensor:
    """The last keys are the queries: each attends itself, its ancestors and the cache."""
    parents = given["parents"]
    items, rows = parents.shape
    family = torch.eye(rows, dtype=torch.bool).repeat(items, 1, 1)
    for row in range(1, rows):
        parent = parents[:, row]
        inherited = family[torch.arange(items), parent.clamp_min(0)]
        family[:, row] |= inherited & (parent >= 0)[:, None]
    past = structure.geometry.key_length - rows
    cache = torch.ones(items, rows, past, dtype=torch.bool)
    return torch.cat((cache, family), dim=-1).unsqueeze(1)


def _parents_of(table: Tensor, structure: Structure) -> Arguments:
    rows = structure.geometry.query_length
    family = table[:, 0, :, table.shape[-1] - rows :].tril(-1)
    index = torch.where(family, torch.arange(rows), -1)
    none = torch.zeros(len(table), 0, dtype=torch.int64)
    return {"parents": index.amax(dim=-1) if rows else none}


def _draw_indices(pattern: str, structure: Structure, generator: Generator) -> Arguments:
    sizes = structure.geometry
    shape = (sizes.batch, 1, sizes.query_length, sizes.key_length)
    return _indices_of(PATTERNS[pattern](shape, generator), structure)


def _read_indices(given: Arguments, structure: Structure) -> Tensor:
    indices, columns = given["key_indices"].long(), structure.geometry.key_length
    seen = torch.zeros(*indices.shape[:2], columns + 1, dtype=torch.bool)
    seen.scatter_(2, torch.where(indices < 0, columns, indices), value=True)
    return seen[..., :columns].unsqueeze(1)


def _indices_of(table: Tensor, _structure: Structure) -> Arguments:
    """The keys of each query, the last first, padded with -1 to equal numbers."""
    table = table[:, 0]
    columns = table.shape[-1]
    most = max(int(table.sum(dim=-1).max()) if table.numel() else 0, 1)
    places = torch.where(table, torch.arange(columns), -1).sort(dim=-1, descending=True).values
    padded = torch.nn.functional.pad(places, (0, max(most - columns, 0)), value=-1)
    return {"key_indices": padded[..., :most].to(torch.int32)}


def _draw_blocks(pattern: str, structure: Structure, generator: Generator) -> Arguments:
    sizes, (tall, wide) = structure.geometry, structure.block_size
    rows, columns = -(-sizes.query_length // tall), -(-sizes.key_length // wide)
    shape = (sizes.batch, sizes.num_heads, rows, columns)
    return {"block_mask": PATTERNS[pattern](shape, generator)}


def _read_blocks(given: Arguments, structure: Structure) -> Tensor:
    """Whole blocks of queries and keys attend; the last ones may be cut off."""
    sizes, (tall, wide) = structure.geometry, structure.block_size
    table: Tensor = (
        given["block_mask"].repeat_interleave(tall, dim=2).repeat_interleave(wide, dim=3)
    )
    return table[:, :, : sizes.query_length, : sizes.key_length]


def _blocks_of(table: Tensor, structure: Structure) -> Arguments:
    tall, wide = structure.block_size
    return {"block_mask": table[:, :, ::tall, ::wide].contiguous()}


def _draw_query_lengths(pattern: str, structure: Structure, generator: Generator) -> Arguments:
    items, rows = structure.geometry.batch, structure.geometry.query_length
    least = 0 if pattern == "random" else 1
    lengths = torch.randint(least, max(rows, 1) + 1, (items,), generator=generator)
    if pattern in ("full", "single"):
        lengths = torch.full_like(lengths, rows if pattern == "full" else 1)
    return {"query_lengths": lengths.clamp(max=rows)}


def _read_query_lengths(given: Arguments, structure: Structure) -> Tensor:
    """The first queries attend every key; those behind them are padding."""
    sizes = structure.geometry
    inside: Tensor = torch.arange(sizes.query_length) < given["query_lengths"][:, None]
    return inside[:, None, :, None].expand(-1, -1, -1, sizes.key_length)


def _query_lengths_of(table: Tensor, _structure: Structure) -> Arguments:
    return {"query_lengths": table[:, 0].any(dim=-1).sum(dim=-1)}


def _windows_of_axis(size: int, window: int, shift: int) -> Tensor:
    """Places of one window among the places of an axis, the first whole one at the shift."""
    number = (torch.arange(size) - shift).div(max(window, 1), rounding_mode="floor")
    return number[:, None] == number


def _neighbors_of_axis(size: int, window: int, _shift: int = 0) -> Tensor:
    """As many places as the window has, about each place, or as near to it as the ends allow."""
    first = (torch.arange(size) - window // 2).clamp(max=max(size - window, 0)).clamp_min(0)
    keys = torch.arange(size)
    return (keys >= first[:, None]) & (keys < first[:, None] + window)


OfAxis = Callable[[int, int, int], Tensor]


def read_grid(of_axis: OfAxis) -> Callable[[Arguments, Structure], Tensor]:
    """The reader of a grid's tables: a key is near in its row and in its column."""

    def read(given: Arguments, _structure: Structure) -> Tensor:
        axes = zip(given["grid"], given["window"], given.get("shift", (0, 0)), strict=True)
        down, across = (of_axis(*axis) for axis in axes)
        near = down[:, None, :, None] & across[None, :, None, :]
        return near.flatten(2).flatten(0, 1)[None, None]

    return read


def _grids(structure: Structure) -> list[tuple[int, int]]:
    """The grids of as many cells as there are keys, those first that are nearly square."""
    cells = structure.geometry.key_length
    every = [(rows, cells // rows) for rows in range(1, cells + 1) if cells % rows == 0]
    return [structure.grid] if structure.grid else sorted(every, key=max) or [(1, 0)]


def _windows(size: int, *, odd: bool) -> list[int]:
    """The windows of an axis: odd ones, or such as divide it."""
    return [each for each in range(1, size + 1) if (each % 2 if odd else size % each == 0)] or [1]


def _chosen(count: int, generator: Generator) -> int:
    return int(torch.randint(max(count, 1), (1,), generator=generator))


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """A form whose tokens are the cells of a grid: windows are odd, or may be shifted."""

    of_axis: OfAxis
    odd: bool = False
    shifted: bool = False

    def arguments(self, grid: tuple[int, ...], axes: list[tuple[int, int]]) -> Arguments:
        """The arguments of a window and a shift for each axis."""
        windows, moved = (tuple(each) for each in zip(*axes, strict=True))
        given = {"grid": grid, "window": windows}
        return given | {"shift": moved} if self.shifted else given

    def draw(self, pattern: str, structure: Structure, generator: Generator) -> Arguments:
        """A grid with several rows and columns, where there is one, and its windows."""
        every = _grids(structure)
        within = [grid for grid in every if min(grid) > 1] or every
        grid = within[_chosen(len(within), generator)]
        if pattern in ("full", "single"):
            windows = grid if pattern == "full" else (1, 1)
            return self.arguments(grid, [(window, 0) for window in windows])
        axes = []
        for size in grid:
            sizes = _windows(size, odd=self.odd)
            window = sizes[_chosen(len(sizes), generator)]
            axes.append((window, _chosen(self._shifts(size, window), generator)))
        return self.arguments(grid, axes)

    def arguments_of(self, table: Tensor, structure: Structure) -> Arguments:
        """The first grid and windows that make a table; for another table a full window."""
        every = _grids(structure)
        for grid in every if table.shape[-1] == table.shape[-2] else ():
            near = table[0, 0].unflatten(1, grid).unflatten(0, grid)
            found = [self._fitting(axis) for axis in (near[:, 0, :, 0], near[0, :, 0])]
            axes = [axis for axis in found if axis is not None]
            if len(axes) == len(grid):
                given = self.arguments(grid, axes)
                if torch.equal(read_grid(self.of_axis)(given, structure), table):
                    return given
        return self.arguments(every[0], [(size, 0) for size in every[0]])

    def _shifts(self, size: int, window: int) -> int:
        return window if self.shifted and window < size else 1

    def _fitting(self, axis: Tensor) -> tuple[int, int] | None:
        """The window and the shift of a table of one axis ``[N, N]``, or None."""
        size = len(axis)
        for window in range(1, size + 1):
            for shift in range(self._shifts(size, window)):
                if torch.equal(self.of_axis(size, window, shift), axis):
                    return window, shift
        return None

    def mask(self) -> StructuredMask:
        """The form of masks."""
        read = read_grid(self.of_axis)
        return StructuredMask(draw=self.draw, read=read, arguments=self.arguments_of)


STRUCTURED_MASKS: Final[Mapping[str, StructuredMask]] = {
    "segments": StructuredMask(
        draw=_draw_segments,
        read=_read_segments,
        arguments=_segments_of,
        patterns=("random", "padding", "full", _EMPTY),
    ),
    "prefix": StructuredMask(draw=_draw_prefix, read=_read_prefix, arguments=_prefix_of),
    "chunks": StructuredMask(draw=_draw_chunks, read=_read_chunks, arguments=_chunk_of),
    "tree": StructuredMask(draw=_draw_tree, read=_read_tree, arguments=_parents_of),
    "indices": StructuredMask(
        draw=_draw_indices,
        read=_read_indices,
        arguments=_indices_of,
        patterns=("random", "dense", "padding", "full", _EMPTY),
    ),
    "blocks": StructuredMask(
        draw=_draw_blocks,
        read=_read_blocks,
        arguments=_blocks_of,
        patterns=("random", "dense", "full", _EMPTY),
    ),
    PADDED_QUERIES: StructuredMask(
        draw=_draw_query_lengths,
        read=_read_query_lengths,
        arguments=_query_lengths_of,
        pads=True,
    ),
    "grid": _Grid(of_axis=_windows_of_axis).mask(),
    "shifted_grid": _Grid(of_axis=_windows_of_axis, shifted=True).mask(),
    "neighborhood": _Grid(of_axis=_neighbors_of_axis, odd=True).mask(),
}
# The forms whose tables can leave a query without keys.
EMPTYING: Final = tuple(form for form, mask in STRUCTURED_MASKS.items() if _EMPTY in mask.patterns)
