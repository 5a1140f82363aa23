"""Reported mistakes of layers: how heads and batch are folded into each other and out again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance

from ..._load import heads_of_one_size
from ...eager import Answer, EagerLayer
from .._kit import layer


@layer("mask.golden", "mask.per-item", masks=["keep"])
class BatchAndHeadsMixedOnMerge(EagerLayer):
    """Folded heads come first, yet are taken for the batch when they are put side by side."""

    link = "https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1"

    def merge(self, heads: Tensor) -> Tensor:
        batch, count, length, size = heads.shape
        first = heads.transpose(0, 1).permute(0, 2, 1, 3).contiguous()
        return first.view(batch, length, count * size)


@layer("equivariance.tokens", "numerics.golden", masks=[], causal=None)
class HeadsAreStretchesOfTokens(EagerLayer):
    """The heads are folded into the batch without a transpose: each is a stretch of the tokens."""

    link = "https://github.com/reczoo/FuxiCTR/issues/30"

    def split(self, tokens: Tensor, num_heads: int) -> Tensor:
        batch, length, width = tokens.shape
        return tokens.reshape(batch, num_heads, length, width // num_heads)

    def merge(self, heads: Tensor) -> Tensor:
        batch, count, length, size = heads.shape
        return heads.reshape(batch, length, count * size)


@layer(
    "mask.per-item",
    "mask.golden",
    masks=["keep"],
    mask_shapes=["B1QK", "B11K"],
    features=["weights"],
)
class HeadsFoldedFirstMasksRepeatedInPlace(EagerLayer):
    """Heads are folded before items, but the mask of an item is repeated next to itself."""

    link = "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/36"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        if options.get("keep") is not None:
            keep = options["keep"].squeeze(1).repeat_interleave(self.num_heads, dim=0)
            folded = keep.unflatten(0, (self.num_heads, -1)).transpose(0, 1)
            options["keep"] = folded
        return super().__call__(query, key, value, **options)


@layer("shape.output", masks=["keep"], causal=None, features=[], geometry=heads_of_one_size)
class HeadSizeFromInputWidth(EagerLayer):
    """The size of a head is the width of the input over the heads, not that of the projection."""

    link = "https://github.com/huggingface/diffusers/pull/4154"

    size = 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        self.size = query.shape[-1] // self.num_heads
        return super().__call__(query, key, value, **options)

    def split(self, tokens: Tensor, num_heads: int) -> Tensor:
        return tokens.reshape(tokens.shape[0], -1, num_heads, self.size).transpose(1, 2)


def one_head_size(geometry: conformance.Geometry) -> conformance.Geometry:
    """Value heads as wide as the others."""
    return geometry.replace(value_head_size=geometry.head_size)


@layer("mask.golden", masks=["keep"], features=["gqa"], inputs="self", geometry=one_head_size)
class FusedWeightsReadByGroup(EagerLayer):
    """Matrices stacked as queries, keys, values are read group by group, each with its three."""

    link = "https://github.com/NVIDIA-NeMo/RL/pull/2802"

    def __call__(self, x: Tensor, **options: Any) -> Answer:  # type: ignore[override]  # one input
        return super().__call__(x, x, x, **options)

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        del key, value  # the same tokens as the query
        stacked = torch.cat([self.project(query, name) for name in "qkv"], dim=-1)
        share = self.num_heads // self.num_kv_heads
        groups = stacked.unflatten(-1, (self.num_kv_heads, share + 2, -1))
        queries = groups[..., :share, :].flatten(2, 3)
        keys, values = groups[..., share, :], groups[..., share + 1, :]
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
