"""Masks said by their structure: segments, a prefix, chunks, a tree, indices, blocks, lengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import conformance

PROMISES: dict[str, Any] = {
    "masks": ["segments", "prefix", "chunks", "tree", "indices", "blocks", "query_lengths"],
    "block_size": (2, 3),
    "padded_rows": "zeros",
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "window"],
}


def ancestors(parents: Tensor) -> Tensor:
    """The new tokens that each sees of its tree, itself among them: bool ``[B, L, L]``."""
    items, rows = parents.shape
    seen = torch.eye(rows, dtype=torch.bool, device=parents.device).repeat(items, 1, 1)
    place = torch.arange(rows, device=parents.device).expand(items, -1)
    for _ in range(rows):
        place = torch.where(place >= 0, parents.gather(1, place.clamp_min(0)), -1)
        marked = torch.zeros_like(seen).scatter_(2, place.clamp_min(0)[..., None], value=True)
        seen |= marked & (place >= 0)[..., None]
    return seen


class StructuredCore:
    """Attention over the keys that a structure shows, each by a method that can be replaced."""

    block_size = (2, 3)

    def segments(self, query_segments: Tensor, key_segments: Tensor) -> Tensor:
        """Query and key of one number: ``[B, 1, Lq, Lk]``."""
        return (query_segments[:, :, None] == key_segments[:, None, :]).unsqueeze(1)

    def prefix(self, lengths: Tensor, ahead: Tensor) -> Tensor:
        """The first keys, and what is not ahead."""
        inside = torch.arange(ahead.shape[1]) < lengths[:, None]
        return inside[:, None, None, :] | (ahead <= 0)

    def chunks(self, chunk: int, rows: int, columns: int) -> Tensor:
        """The chunk in which a query stands."""
        places = torch.arange(rows) + columns - rows
        return (
            torch.arange(columns) // chunk == places.div(chunk, rounding_mode="floor")[:, None]
        )[None, None]

    def tree(self, parents: Tensor, columns: int) -> Tensor:
        """The cache, and of the new tokens the ancestors."""
        items, rows = parents.shape
        cache = torch.ones(items, rows, columns - rows, dtype=torch.bool)
        return torch.cat((cache, ancestors(parents)), dim=-1).unsqueeze(1)

    def indices(self, key_indices: Tensor, columns: int) -> Tensor:
        """The listed keys."""
        items, rows, _ = key_indices.shape
        seen = torch.zeros(items, rows, columns + 1, dtype=torch.bool)
        index = torch.where(key_indices < 0, columns, key_indices.long())
        return seen.scatter_(2, index, value=True)[..., :columns].unsqueeze(1)

    def blocks(self, block_mask: Tensor, rows: int, columns: int) -> Tensor:
        """Every key of a block."""
        tall, wide = self.block_size
        table = block_mask.repeat_interleave(tall, dim=2).repeat_interleave(wide, dim=3)
        return table[:, :, :rows, :columns]

    def query_lengths(self, lengths: Tensor, rows: int) -> Tensor:
        """Every key for the first queries; those behind them are padding."""
        return (torch.arange(rows) < lengths[:, None])[:, None, :, None]

    def _seen(self, ahead: Tensor, options: dict[str, Any]) -> Tensor:
        rows, columns = ahead.shape
        made: dict[str, Callable[[], Tensor]] = {
            "query_segments": lambda: self.segments(
                options["query_segments"], options["key_segments"]
            ),
            "prefix_lengths": lambda: self.prefix(options["prefix_lengths"], ahead),
            "chunk": lambda: self.chunks(options["chunk"], rows, columns),
            "parents": lambda: self.tree(options["parents"], columns),
            "key_indices": lambda: self.indices(options["key_indices"], columns),
            "block_mask": lambda: self.blocks(options["block_mask"], rows, columns),
            "query_lengths": lambda: self.query_lengths(options["query_lengths"], rows),
        }
        given = [table() for name, table in made.items() if name in options]
        return given[0] if given else torch.ones(1, 1, rows, columns, dtype=torch.bool)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int, int] = (-1, -1),
        **structure: Any,
    ) -> Tensor:
        """Attend; ``structure`` holds the keywords of one structure, or none."""
        if key.shape[2] != value.shape[2] or key.shape[3] != query.shape[3]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} do not fit"
            raise ValueError(msg)
        rows, columns = query.shape[2], key.shape[2]
        group = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        ahead = torch.arange(columns) - torch.arange(rows)[:, None] - (columns - rows)
        seen = self._seen(ahead, structure)
        left, right = window
        if left >= 0:
            seen = seen & (ahead >= -left)
        if right >= 0:
            seen = seen & (ahead <= right)
        if causal:
            seen = seen & (ahead <= 0)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        logits = (query @ key.mT * scale).masked_fill(~seen, -math.inf)
        weights = logits.softmax(dim=-1).masked_fill(~seen, 0.0)
        return weights @ value


structured_attention = conformance.core(name="structured_attention", **PROMISES)(StructuredCore())
