"""Mistakes of caches that hold codes or latents, and of structures and sums by item."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..served_attention import (
    CODES,
    LATENT,
    PACKED,
    STRUCTURED,
    CodedPagedCore,
    LatentPagedCore,
    PackedLogSumExps,
    StructuredPagedCore,
)
from ._kit import core

OF_HEADS: Final[dict[str, Any]] = {**CODES, "masks": [], "kv_scales": "head"}
OF_SLOTS: Final[dict[str, Any]] = {**CODES, "masks": [], "kv_scales": "slot"}
LATENTS: Final[dict[str, Any]] = {**LATENT, "masks": []}
SEQUENCES: Final[dict[str, Any]] = {**PACKED, "masks": []}


@core("quantised.golden", "quantised.scales", **OF_HEADS)
class PagesWithTheScaleOfTheFirstHead(CodedPagedCore):
    """All heads have the scale of the first."""

    def numbers(self, codes: Tensor, scale: Tensor) -> Tensor:
        return super().numbers(codes, scale[:1].expand_as(scale))


@core("quantised.golden", "paged.golden", **OF_SLOTS)
class ScalesOfTheFirstPage(CodedPagedCore):
    """The slots of every page have the scales of the first page."""

    def numbers(self, codes: Tensor, scale: Tensor) -> Tensor:
        return super().numbers(codes, scale[:1].expand_as(scale))


@core("mask.golden", **STRUCTURED)
class TreeOfTheCache(StructuredPagedCore):
    """The parents of new tokens are looked for among the first keys of the cache."""

    def seen(self, given: dict[str, Any], item: int, rows: slice, count: int) -> Tensor:
        shown = super().seen(given, item, rows, count)
        return shown.roll(rows.stop - rows.start, dims=1) if "parents" in given else shown


@core("mask.golden", **STRUCTURED)
class PrefixOfTheFirstItem(StructuredPagedCore):
    """Every item has the prefix of the first."""

    def seen(self, given: dict[str, Any], item: int, rows: slice, count: int) -> Tensor:
        return super().seen(given, 0 if "prefix_lengths" in given else item, rows, count)


@core("mask.golden", **STRUCTURED)
class IndicesOfOtherRows(StructuredPagedCore):
    """The rows of chosen keys are counted from the first of each item, not of all items."""

    def seen(self, given: dict[str, Any], item: int, rows: slice, count: int) -> Tensor:
        if "key_indices" in given:
            rows = slice(0, rows.stop - rows.start)
        return super().seen(given, item, rows, count)


@core("paged.golden", **LATENTS)
class LatentOfTheNextItem(LatentPagedCore):
    """Each item reads the pages of latents of the next item."""

    def pages(self, table: Tensor, item: int, count: int) -> Tensor:
        return super().pages(table, (item + 1) % len(table), count)


@core("lse.golden", **SEQUENCES)
class SumsInReverse(PackedLogSumExps):
    """The log-sum-exps of sequences lie in the reverse order."""

    def returned(self, sums: list[Tensor]) -> Tensor:
        return torch.cat(sums[::-1])


@core("lse.empty-row", **SEQUENCES)
class SumsOfNoKeysAreZero(PackedLogSumExps):
    """The log-sum-exps of a sequence without keys stay zero, as they were allocated."""

    def returned(self, sums: list[Tensor]) -> Tensor:
        return torch.cat([one.masked_fill(one.isneginf().all(), 0.0) for one in sums])


@core("learned.slopes", **SEQUENCES)
class SlopesOfTheFirstSequence(PackedLogSumExps):
    """All sequences have the slopes of the first."""

    def __call__(self, *tokens: Tensor, alibi_slopes: Tensor, **options: Any) -> Any:
        first = alibi_slopes[:1] if alibi_slopes.dim() > 1 else alibi_slopes
        return super().__call__(*tokens, alibi_slopes=first, **options)
