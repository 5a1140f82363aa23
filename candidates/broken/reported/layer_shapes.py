"""Reported mistakes of layers: how heads and batch are folded into each other and out again."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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
