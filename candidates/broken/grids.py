"""Mistakes with windows in a grid: what is rolled, hidden, centred, and in which order."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..grid_attention import NeighborhoodCore, Pair, SwinCore
from ._kit import core

_PRIMARY: Final = "mask.golden"
_SHARED: Final[dict[str, Any]] = {
    "causal": None,
    "empty_rows": "any",
    "features": ["scale", "gqa"],
}
OF_WINDOWS: Final[dict[str, Any]] = {**_SHARED, "masks": ["shifted_grid"]}
OF_NEIGHBORS: Final[dict[str, Any]] = {**_SHARED, "masks": ["neighborhood"]}


@core(_PRIMARY, **OF_WINDOWS)
class OppositeEdgesAttended(SwinCore):
    """Cells that were rolled to the other edge are not hidden from the cells of that edge."""

    def seen(self, grid: Pair, window: Pair, shift: Pair) -> Tensor:
        return torch.ones_like(super().seen(grid, window, shift))


@core(_PRIMARY, **OF_WINDOWS)
class ShiftedForRowsAlone(SwinCore):
    """Columns are not shifted."""

    def __call__(self, *heads: Tensor, shift: Pair = (0, 0), **options: Any) -> Tensor:
        return super().__call__(*heads, shift=(shift[0], 0), **options)


@core(_PRIMARY, **OF_WINDOWS)
class ShiftsExchanged(SwinCore):
    """Rows are shifted as columns should be, as far as their windows go, and the reverse."""

    def __call__(self, *heads: Tensor, shift: Pair = (0, 0), **options: Any) -> Tensor:
        tall, wide = options.get("window", (1, 1))
        return super().__call__(*heads, shift=(shift[1] % tall, shift[0] % wide), **options)


@core(_PRIMARY, **OF_WINDOWS)
class GridReadByColumns(SwinCore):
    """The numbers of rows and of columns are exchanged, those of the window, too."""

    def __call__(self, *heads: Tensor, **options: Any) -> Tensor:
        pairs: dict[str, Pair] = {
            name: options[name][::-1] for name in ("grid", "window", "shift") if name in options
        }
        return super().__call__(*heads, **{**options, **pairs})


@core(_PRIMARY, **OF_NEIGHBORS)
class NeighborsFromTheCellOn(NeighborhoodCore):
    """Windows begin at their cell, not half a window before it."""

    def first(self, size: int, window: int) -> Tensor:
        return torch.arange(size).clamp(0, size - window)


@core(_PRIMARY, **OF_NEIGHBORS)
class NeighborsWrapped(NeighborhoodCore):
    """Windows go on at the opposite edge of the grid."""

    def near(self, grid: Pair, window: Pair) -> Tensor:
        down, across = (
            (torch.arange(size)[:, None] + torch.arange(each) - each // 2) % size
            for size, each in zip(grid, window, strict=True)
        )
        cells = down[:, None, :, None] * grid[1] + across[None, :, None, :]
        return cells.flatten(2).flatten(0, 1)


@core(_PRIMARY, **OF_NEIGHBORS)
class NeighborsInMemory(NeighborhoodCore):
    """The window is one of as many cells in memory, whatever rows there are."""

    def near(self, grid: Pair, window: Pair) -> Tensor:
        return super().near((1, grid[0] * grid[1]), (1, window[0] * window[1]))
