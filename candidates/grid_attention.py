"""Attention within windows of a grid of tokens: Swin's, shifted or not, and neighborhoods."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

import conformance

PROMISES: Final[dict[str, Any]] = {"features": ["scale", "gqa"]}
Pair = tuple[int, int]


class SwinCore:
    """Rolled cells are cut into windows, which are attended as items of a batch of their own."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        grid: Pair | None = None,
        window: Pair | None = None,
        shift: Pair = (0, 0),
        scale: float | None = None,
    ) -> Tensor:
        """Attend ``[B, H, rows*columns, D]``; without a window every cell sees all."""
        batch, heads, cells, size = query.shape
        grid = (1, cells) if grid is None else grid
        window = grid if window is None else window
        group = heads // key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        parts = [
            self.windows(self.roll(part.unflatten(2, grid), shift), window)
            for part in (query, key, value)
        ]
        seen = self.seen(grid, window, shift)
        scale = size**-0.5 if scale is None else scale
        logits = (parts[0] @ parts[1].mT * scale).masked_fill(~seen, -math.inf)
        mixed = logits.softmax(dim=-1) @ parts[2]
        tiles = mixed.unflatten(3, window).unflatten(2, (grid[0] // window[0], -1))
        rows = tiles.transpose(3, 4).reshape(batch, heads, *grid, value.shape[-1])
        return self.roll(rows, (-shift[0], -shift[1])).flatten(2, 3)

    def roll(self, cells: Tensor, shift: Pair) -> Tensor:
        """Cells ``[B, H, rows, columns, D]`` with the first whole window at the beginning."""
        return cells.roll((-shift[0], -shift[1]), dims=(2, 3))

    def windows(self, cells: Tensor, window: Pair) -> Tensor:
        """The windows of cells: ``[B, H, windows, cells of each, D]``."""
        tall, wide = window
        tiles: Tensor = cells.unflatten(3, (-1, wide)).unflatten(2, (-1, tall)).transpose(3, 4)
        return tiles.flatten(4, 5).flatten(2, 3)

    def seen(self, grid: Pair, window: Pair, shift: Pair) -> Tensor:
        """Which cells of a window belong together: bool ``[windows, cells, cells]``."""
        region = torch.zeros(1, 1, *grid, 1)
        for axis, (size, tall, moved) in enumerate(zip(grid, window, shift, strict=True)):
            places = torch.arange(size)
            number = (places >= size - tall).long() + (places >= size - moved)
            region = region + (3**axis * number).view(
                [-1 if at == axis + 2 else 1 for at in range(5)]
            )
        own = self.windows(region, window)[0, 0, ..., 0]
        seen: Tensor = own[:, :, None] == own[:, None, :]
        return seen


class NeighborhoodCore:
    """Each cell gathers the keys and values of its window."""

    def first(self, size: int, window: int) -> Tensor:
        """The first place of each place's window."""
        return (torch.arange(size) - window // 2).clamp(0, size - window)

    def near(self, grid: Pair, window: Pair) -> Tensor:
        """The cells of each cell's window: int64 ``[cells, cells of a window]``."""
        down, across = (
            self.first(size, each)[:, None] + torch.arange(each)
            for size, each in zip(grid, window, strict=True)
        )
        cells = down[:, None, :, None] * grid[1] + across[None, :, None, :]
        return cells.flatten(2).flatten(0, 1)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        grid: Pair | None = None,
        window: Pair | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attend ``[B, H, rows*columns, D]``; without a window every cell sees all."""
        if not query.shape[2] == key.shape[2] == value.shape[2]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} are not of one grid"
            raise ValueError(msg)
        grid = (1, query.shape[2]) if grid is None else grid
        near = self.near(grid, grid if window is None else window)
        group = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(group, dim=1)[:, :, near] for part in (key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        logits = query[..., None, :] @ keys.mT * scale
        return (logits.softmax(dim=-1) @ values)[..., 0, :]


class FixedGridCore(SwinCore):
    """A kernel for one grid alone."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Attend the cells of four rows and six columns."""
        return super().__call__(query, key, value, grid=(4, 6), **options)


windows = conformance.core(name="grid_windows", masks=["grid"], **PROMISES)(SwinCore())
shifted = conformance.core(
    name="shifted_windows",
    masks=["shifted_grid", "grid"],
    dtypes=["float32", "float64", "bfloat16"],
    **PROMISES,
)(SwinCore())
neighborhoods = conformance.core(name="neighborhoods", masks=["neighborhood"], **PROMISES)(
    NeighborhoodCore()
)
fixed_grid = conformance.core(name="fixed_grid", masks=["grid"], grid=(4, 6), **PROMISES)(
    FixedGridCore()
)
