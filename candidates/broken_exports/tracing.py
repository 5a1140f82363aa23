"""Sizes, branches and tables that one traced call left in the graph for good."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ..exports import by_export, by_tracing
from ..exports import sources as exported
from ..exports._describing import SIZES
from ..exports.described import OWN
from ..exports.sources import NUM_HEADS, WIDTH, seeded
from ._kit import HEAD_SIZE, KEPT, Own, Plain, broken, cross, own

ONE_TOKEN: Final = {**SIZES, "queries": 1, "keys": 1}
ONE_ITEM: Final = {**SIZES, "batch": 1}
EQUAL: Final = {**SIZES, "queries": 4, "keys": 4}
NOBODY_MASKED: Final = torch.ones(SIZES["batch"], 1, 1, SIZES["keys"], dtype=torch.long)


class Inferring(Plain):
    """Leaves the length to torch."""

    def split(self, tokens: Tensor) -> Tensor:
        return tokens.view(tokens.shape[0], -1, NUM_HEADS, HEAD_SIZE).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(heads.shape[0], -1, WIDTH)


class WholeBatch(Plain):
    """Converts the batch to a number, and leaves the length to torch."""

    def split(self, tokens: Tensor) -> Tensor:
        return tokens.view(int(tokens.shape[0]), -1, NUM_HEADS, HEAD_SIZE).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(int(heads.shape[0]), -1, WIDTH)


class WholeLength(Plain):
    """Converts the length to a number, and leaves the batch to torch."""

    def split(self, tokens: Tensor) -> Tensor:
        return tokens.view(-1, int(tokens.shape[1]), NUM_HEADS, HEAD_SIZE).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(-1, int(heads.shape[2]), WIDTH)


class CountingElements(Plain):
    """Finds the head size by counting elements."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        batch, heads, length, _ = query.shape
        size = int(query.numel()) / (batch * heads * length)
        return query @ key.transpose(-1, -2) / torch.sqrt(torch.as_tensor(size).float())


class SkippingMasks(Plain):
    """Spares the mask when it masks nothing; its length says how many keys there are."""

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        scores = scores[..., : mask.shape[-1]]
        return scores if bool(mask.all()) else super().masked(scores, mask)


class CausalByNumpy(Own):
    """Builds its triangle outside of torch."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        length = int(query.shape[-2])
        later = torch.from_numpy(np.triu(np.ones((length, length), dtype=bool), k=1))
        return super().scores(query, key).masked_fill(later, float("-inf"))


class CausalByTable(Own):
    """Cuts its triangle out of a table."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        length = int(query.shape[-2])
        scores = super().scores(query, key)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        # Shorter than traced: the table is cut. Longer: the rest of the rows stays unmasked.
        shape = scores.shape[:2]
        table = torch.zeros(*shape, scores.shape[2], scores.shape[3], dtype=torch.bool)
        table[:, :, :length, :length] = later
        return scores.masked_fill(table, float("-inf"))


class PerKey(Plain):
    """Averages instead of summing, then undoes it with the number of keys."""

    def weigh(self, scores: Tensor) -> Tensor:
        keys = int(scores.shape[-1])
        grown = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        return grown / (grown.mean(dim=-1, keepdim=True) * keys)


class EveryHeadsLength(Plain):
    """Unrolls a loop over the queries."""

    def weigh(self, scores: Tensor) -> Tensor:
        rows = [torch.softmax(scores[:, :, row], dim=-1) for row in range(scores.shape[2])]
        return torch.stack(rows, dim=2)


inferring: Final = seeded(Inferring)
whole_batch: Final = seeded(WholeBatch)
whole_length: Final = seeded(WholeLength)
counting: Final = seeded(CountingElements)
skipping: Final = seeded(SkippingMasks)
causal_by_numpy: Final = seeded(CausalByNumpy)
causal_by_table: Final = seeded(CausalByTable)
per_key: Final = seeded(PerKey)
unrolled: Final = seeded(EveryHeadsLength)


@broken("export.dynamic-length", source=inferring)
def traced_at_length_one(path: Path) -> Path:
    """Exported with one token: ``view(batch, -1, …)`` becomes one that folds tokens into items."""
    source = cross(inferring)
    return by_export(source, path, example=source.example(ONE_TOKEN))


@broken("export.dynamic-batch", source=whole_batch)
def traced_at_batch_one(path: Path) -> Path:
    """Traced with one item: every batch is read as one item with more tokens."""
    source = cross(whole_batch)
    return by_tracing(source, path, example=source.example(ONE_ITEM))


@broken("export.dynamic-batch", source=whole_batch)
def baked_batch(path: Path) -> Path:
    """``int(x.shape[0])`` under tracing: the traced batch is in the graph, called open."""
    return by_tracing(cross(whole_batch), path)


@broken("export.dynamic-length", source=whole_length)
def baked_lengths(path: Path) -> Path:
    """``int(x.shape[1])`` under tracing: other lengths are refused, or read as another batch."""
    return by_tracing(cross(whole_length), path)


@broken("export.dynamic-length", source=whole_length)
def traced_with_equal_lengths(path: Path) -> Path:
    """Traced with as many queries as keys, the number of both is in the graph."""
    source = cross(whole_length)
    return by_tracing(source, path, example=source.example(EQUAL))


@broken("export.dynamic-length", source=exported.own)
def self_attention_traced(path: Path) -> Path:
    """Tracing ``nn.MultiheadAttention`` on one sequence leaves its sizes in the graph."""
    return by_tracing(next(source for source in OWN if source.name == "own"), path)


@broken("export.dynamic-length", source=counting)
def scale_counted_while_tracing(path: Path) -> Path:
    """The scale divides a traced number of elements by sizes that stay dynamic."""
    return by_tracing(cross(counting), path)


@broken("export.inputs-matter", source=skipping)
def branch_of_the_traced_mask(path: Path) -> Path:
    """A branch on the mask's values took the side that ignores it: the traced one was full."""
    source = cross(skipping, KEPT)
    tokens = source.example()[:3]
    return by_tracing(source, path, example=(*tokens, NOBODY_MASKED))


@broken("export.dynamic-length", source=causal_by_numpy)
def triangle_of_the_traced_length(path: Path) -> Path:
    """A causal triangle made by numpy is a constant of the traced length."""
    return by_tracing(own(causal_by_numpy), path)


@broken("export.dynamic-length", source=causal_by_table)
def triangle_ends_at_the_traced_length(path: Path) -> Path:
    """The causal triangle covers the traced length, and tokens beyond it see everything."""
    return by_tracing(own(causal_by_table), path)


@broken("export.dynamic-length", source=per_key)
def number_of_keys_baked(path: Path) -> Path:
    """The softmax divides by the traced number of keys, so the weights sum to something else."""
    return by_tracing(cross(per_key), path)


@broken("export.dynamic-length", source=unrolled)
def loop_unrolled(path: Path) -> Path:
    """A Python loop over the queries is unrolled: only the traced number of rows comes back."""
    return by_tracing(cross(unrolled), path)
