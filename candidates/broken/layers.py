"""Mistakes around the core of a layer: projections, cutting into heads and merging."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance

from ..eager import Answer, Call, EagerCore, EagerLayer
from ._kit import InexactCore, layer


@layer("numerics.golden")
class QueryBiasForgotten(EagerLayer):
    """The bias of the query projection is not added."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        return tokens @ self.weights.q.mT if name == "q" else super().project(tokens, name)


@layer("numerics.golden")
class ValueBiasForgotten(EagerLayer):
    """The bias of the value projection is not added."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        return tokens @ self.weights.v.mT if name == "v" else super().project(tokens, name)


@layer("numerics.golden")
class OutputBiasForgotten(EagerLayer):
    """The bias of the output projection is not added."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        return tokens @ self.weights.o.mT if name == "o" else super().project(tokens, name)


@layer("numerics.golden")
class OutputBiasOncePerHead(EagerLayer):
    """The heads are projected one by one and summed, so that the output bias is added by each."""

    def project_output(self, merged: Tensor) -> Tensor:
        bias = self.weights.o_bias
        once = super().project_output(merged)
        return once if bias is None else once + (self.num_heads - 1) * bias


@layer("numerics.golden")
class HeadsSplitByView(EagerLayer):
    """Heads are cut by ``view`` alone, which re-reads memory: a head gets channels of all heads."""

    def split(self, tokens: Tensor, num_heads: int) -> Tensor:
        batch, length, width = tokens.shape
        return tokens.reshape(batch, num_heads, length, width // num_heads)


@layer("numerics.golden")
class HeadsMergedByView(EagerLayer):
    """Heads are merged by ``view`` without moving their axis back: tokens and heads mix."""

    def merge(self, heads: Tensor) -> Tensor:
        batch, num_heads, length, size = heads.shape
        return heads.reshape(batch, length, num_heads * size)


@layer("numerics.golden")
class HeadsInterleaved(EagerLayer):
    """Neighbouring channels go to different heads: the width is cut as size x heads."""

    def split(self, tokens: Tensor, num_heads: int) -> Tensor:
        batch, length, width = tokens.shape
        return tokens.reshape(batch, length, width // num_heads, num_heads).permute(0, 3, 1, 2)


@layer("numerics.golden")
class HeadsMergedInterleaved(EagerLayer):
    """The channels of the heads are interleaved where the heads should stand side by side."""

    def merge(self, heads: Tensor) -> Tensor:
        return heads.permute(0, 2, 3, 1).flatten(2)


@layer("shape.output", "numerics.golden", features=["weights"])
class HeadsAlongTokens(EagerLayer):
    """The heads are concatenated along the tokens: the answer has a row for each head and token."""

    def merge(self, heads: Tensor) -> Tensor:
        return heads.flatten(1, 2)

    def project_output(self, merged: Tensor) -> Tensor:
        block: Tensor = self.weights.o[:, : merged.shape[-1]]
        bias = self.weights.o_bias
        return merged @ block.mT if bias is None else merged @ block.mT + bias


@layer("numerics.golden")
class HeadsReversed(EagerLayer):
    """The heads are merged in reverse order."""

    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads.flip(1))


@layer("numerics.golden")
class HeadsAdded(EagerLayer):
    """The heads are added up, and each block of the output projection gets the sum."""

    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads.sum(dim=1, keepdim=True).expand_as(heads))


@layer("numerics.golden", geometry={"query_size": "key_size"}, features=["weights"])
class QueryAndKeyShareProjection(EagerLayer):
    """Queries and keys go through one projection, that of the queries."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        return super().project(tokens, "q" if name == "k" else name)


@layer("numerics.golden", geometry={"value_size": "key_size", "value_head_size": "head_size"})
class ValueProjectedByKeys(EagerLayer):
    """The values go through the projection of the keys."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        return super().project(tokens, "k" if name == "v" else name)


@layer("numerics.golden")
class OneProjectionForAllHeads(EagerLayer):
    """All heads use the projection of the first one."""

    def split(self, tokens: Tensor, num_heads: int) -> Tensor:
        heads = super().split(tokens, num_heads)
        return heads[:, :1].expand_as(heads)


def square_output(geometry: conformance.Geometry) -> conformance.Geometry:
    """A geometry whose output is as wide as the merged heads."""
    return geometry.replace(output_size=geometry.num_heads * geometry.value_head_size)


@layer("numerics.golden", geometry=square_output)
class OutputProjectionTransposed(EagerLayer):
    """The output projection is multiplied from the wrong side, which a square matrix lets pass."""

    def project_output(self, merged: Tensor) -> Tensor:
        matrix: Tensor = self.weights.o
        bias = self.weights.o_bias
        return merged @ matrix if bias is None else merged @ matrix + bias


@layer("numerics.golden", geometry=square_output)
class OutputProjectionMissing(EagerLayer):
    """The merged heads are returned without the output projection."""

    def project_output(self, merged: Tensor) -> Tensor:
        return merged


@layer("numerics.golden", geometry={"value_size": "query_size"})
class ResidualAdded(EagerLayer):
    """The query is added to the answer where their widths agree: the residual belongs outside."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        answer = super().__call__(query, key, value, **options)
        mean = query.mean(dim=-1, keepdim=True)
        return (answer[0] + mean, answer[1]) if isinstance(answer, tuple) else answer + mean


@layer("numerics.golden", "numerics.value-linear", geometry={"value_size": "key_size"})
class KeyAndValueSwapped(EagerLayer):
    """Keys and values are handed over in the wrong order."""

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().heads(query, value, key)


@layer("numerics.golden")
class HeadSizeAndCountSwapped(EagerLayer):
    """The number of heads and their size are swapped in the scale."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        return super().__call__(query, key, value, scale=self.num_heads**-0.5, **options)


@layer("equivariance.batch-independent", "numerics.golden", inputs="self", causal=None, masks=[])
class BatchTakenForTokens(EagerLayer):
    """Batch and tokens are mixed up: each place attends over the items of the batch."""

    def __call__(self, x: Tensor, **options: Any) -> Answer:  # type: ignore[override]  # one input
        turned = x.transpose(0, 1)
        return super().__call__(turned, turned, turned, **options)

    def project_output(self, merged: Tensor) -> Tensor:
        return super().project_output(merged).transpose(0, 1)


class FoldedCore(EagerCore):
    """A core that has folded the heads into the batch and repeats the lengths wrongly."""

    def within_lengths(self, call: Call, lengths: Tensor) -> Tensor:
        """Item lengths, repeated as a whole instead of each in turn."""
        num_heads = call.query.shape[1]
        folded = lengths.repeat(num_heads).reshape(lengths.shape[0], num_heads)
        return torch.arange(call.key_length) < folded[:, :, None, None]


@layer("mask.per-item", "mask.golden", "equivariance.batch-independent", masks=["lengths"])
class LengthsRepeatedWhole(EagerLayer):
    """With the heads folded into the batch, the lengths are repeated as a whole, not one by one."""

    core = FoldedCore()


class MillionCore(InexactCore):
    """A core that writes -1,000,000 over ignored logits."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        """The softmax of the filled logits."""
        return self.softmax(logits if allowed is None else logits.masked_fill(~allowed, -1e6))


@layer("mask.single-key", masks=["keep", "lengths"], empty_rows="mean-of-all")
class LayerFillMinusMillion(EagerLayer):
    """A layer replaces ignored logits by -1,000,000, which live logits may lie below."""

    core = MillionCore()


class FirstCallsMask(EagerCore):
    """A core whose causal table is remembered by the number of keys alone."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Tensor] = {}

    def ahead(self, call: Call) -> Tensor:
        """The first table that was made for so many keys, cut or filled up to the queries."""
        known = self.known.setdefault(call.key_length, super().ahead(call))
        rows = torch.arange(call.query_length).clamp_max(max(known.shape[0] - 1, 0))
        return known[rows] if known.shape[0] else super().ahead(call)


@layer("mask.causal-alignment")
class CausalTableByKeys(EagerLayer):
    """The causal table is remembered by the number of keys and reused for other query lengths."""

    core = FirstCallsMask()
