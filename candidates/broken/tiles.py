"""Mistakes of kernels that walk over the keys in tiles and keep a running softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ..eager import Call, EagerCore
from ._kit import core

# The tiles know nothing of dropout, and the weights that are returned are not theirs.
FUSED: Final[dict[str, Any]] = {"features": ["scale", "gqa"]}


@dataclass
class Running:
    """What a row knows after some tiles: its largest logit, the sum of exponentials, the values."""

    largest: Tensor
    total: Tensor
    mixed: Tensor


class TiledCore(EagerCore):
    """A correct core that never holds more than a tile of logits, as fused kernels do."""

    queries = 16
    keys = 16

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """As ever; the tiles look at the call again."""
        self.call = call
        return super().logits(call, key)

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """Masks the logits for the tiles; the weights themselves tell :meth:`mix` nothing."""
        self.masked = logits if allowed is None else self.mask(logits, allowed)
        self.unmasked = logits
        return super().weights(logits, allowed)

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        """The weighted sum again, from the logits, tile by tile."""
        if weights.numel() == 0:
            return super().mix(weights, value)
        starts = range(0, weights.shape[-2], self.queries)
        return torch.cat([self.rows(weights, value, start) for start in starts], dim=-2)

    def rows(self, weights: Tensor, value: Tensor, start: int) -> Tensor:
        """The answer of one tile of queries."""
        del weights
        logits = self.masked[..., start : start + self.queries, :]
        state = self.begin(logits, value)
        for first in range(0, logits.shape[-1], self.keys):
            self.add(
                state,
                self.tile(logits, start, first),
                value[..., first : first + self.keys, :],
            )
        return self.finish(state)

    def begin(self, logits: Tensor, value: Tensor) -> Running:
        """Nothing seen yet."""
        rows = logits.shape[:-1]
        return Running(
            largest=logits.new_full((*rows, 1), -math.inf),
            total=logits.new_zeros((*rows, 1)),
            mixed=value.new_zeros((*rows, value.shape[-1])),
        )

    def tile(self, logits: Tensor, start: int, first: int) -> Tensor:
        """The logits of one tile; ``start`` is its first query, ``first`` its first key."""
        del start
        return logits[..., first : first + self.keys]

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        """Take one tile into account."""
        largest = torch.maximum(state.largest, logits.amax(dim=-1, keepdim=True))
        finite = self.reference(largest)
        shrink = torch.exp(state.largest - finite)
        exponentials = torch.exp(logits - finite)
        state.total = state.total * shrink + exponentials.sum(dim=-1, keepdim=True)
        state.mixed = state.mixed * shrink + exponentials @ value
        state.largest = largest

    def reference(self, largest: Tensor) -> Tensor:
        """What is subtracted from the logits: rows without any key yet have no largest one."""
        return largest.masked_fill(largest.isneginf(), 0.0)

    def finish(self, state: Running) -> Tensor:
        """Divide by the sum; a row without any key is zeros."""
        return state.mixed / state.total.masked_fill(state.total == 0, 1.0)


@core("mask.golden", "mask.causal-combined", **FUSED)
class EmptyTileIsNan(TiledCore):
    """A tile whose keys are all ignored gives NaN: minus infinity is subtracted from itself."""

    def reference(self, largest: Tensor) -> Tensor:
        return largest


@core("numerics.large-logits", **FUSED)
class RunningMaximumStartsAtZero(TiledCore):
    """The running maximum starts at zero: rows whose logits are all very negative vanish."""

    def begin(self, logits: Tensor, value: Tensor) -> Running:
        state = super().begin(logits, value)
        state.largest = torch.zeros_like(state.largest)
        return state


@core("numerics.large-logits", **FUSED)
class MaximumOfFirstTile(TiledCore):
    """The maximum of the first tile is kept for all of them: later ones may overflow."""

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        if state.largest.isneginf().all():
            super().add(state, logits, value)
            return
        exponentials = torch.exp(logits - self.reference(state.largest))
        state.total = state.total + exponentials.sum(dim=-1, keepdim=True)
        state.mixed = state.mixed + exponentials @ value


@core("numerics.constant-value", "numerics.golden", **FUSED)
class SumNotRescaled(TiledCore):
    """When the running maximum grows, the sum to divide by is not rescaled; the values are."""

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        before = state.total.clone()
        super().add(state, logits, value)
        largest = self.reference(state.largest)
        state.total = before + torch.exp(logits - largest).sum(dim=-1, keepdim=True)


@core("numerics.constant-value", "numerics.golden", **FUSED)
class RescaledTwice(TiledCore):
    """When the running maximum grows, what was summed before is rescaled twice."""

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        largest = torch.maximum(state.largest, logits.amax(dim=-1, keepdim=True))
        state.mixed = state.mixed * torch.exp(state.largest - self.reference(largest))
        super().add(state, logits, value)


@core("numerics.golden", "equivariance.keys", **FUSED)
class TilesNormalisedApart(TiledCore):
    """Each tile is divided by its own sum: keys of early tiles count less than late ones."""

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        super().add(state, logits, value)
        state.mixed = self.finish(state)
        state.total = (state.total > 0).to(state.total.dtype)


@core("numerics.constant-value", "numerics.golden", **FUSED)
class PaddedKeysCounted(TiledCore):
    """The last tile is filled up with zero keys, which take part in the softmax."""

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        missing = self.keys - logits.shape[-1]
        zeros = value.new_zeros((*value.shape[:-2], missing, value.shape[-1]))
        padded = torch.nn.functional.pad(logits, (0, missing))
        super().add(state, padded, torch.cat([value, zeros], dim=-2))


@core("mask.golden", **FUSED)
class TileSkippedByItsFirstRow(TiledCore):
    """A tile is skipped when its first query may attend none of its keys, though others may."""

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        hidden = logits[..., :1, :].isneginf().all(dim=-1, keepdim=True)
        super().add(state, logits.masked_fill(hidden, -math.inf), value)


@core("equivariance.batch", "mask.empty-row-isolated", **FUSED)
class TileSkippedByFirstItem(TiledCore):
    """A tile is skipped for all items when the first item may attend none of its keys."""

    def add(self, state: Running, logits: Tensor, value: Tensor) -> None:
        if not bool(logits[0].isneginf().all()):
            super().add(state, logits, value)


@core("mask.causal-combined", "mask.causal-alignment", **FUSED)
class DiagonalTileSkipped(TiledCore):
    """With the causal flag the loop over tiles ends before the one that holds the diagonal."""

    def tile(self, logits: Tensor, start: int, first: int) -> Tensor:
        tile = super().tile(logits, start, first)
        diagonal = start + self.call.key_length - self.call.query_length
        skipped = self.call.causal and 0 < first <= diagonal < first + self.keys
        return tile.masked_fill(torch.tensor(skipped), -math.inf)


@core("mask.causal-alignment", masks=[], **FUSED)
class TilesLeftOfWrongDiagonal(TiledCore):
    """Tiles left of the diagonal that starts at the first key are not masked; it is another one."""

    def tile(self, logits: Tensor, start: int, first: int) -> Tensor:
        if not self.call.causal or first + self.keys > start:
            return super().tile(logits, start, first)
        rows = self.unmasked[..., start : start + self.queries, :]
        return super().tile(rows, start, first)


@core("mask.no-leak", "mask.padding-is-absence", causal=None, **FUSED)
class FullFirstTileEndsMasking(TiledCore):
    """Once a tile has no ignored key the mask is not looked at any more."""

    def rows(self, weights: Tensor, value: Tensor, start: int) -> Tensor:
        first = self.masked[..., start : start + self.queries, : self.keys]
        if not bool(first.isneginf().any()):
            self.masked = self.unmasked
        return super().rows(weights, value, start)
