"""Online softmax: blocks of keys with a running maximum, in several sizes and orders.

Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018 (arXiv:1805.02867), whose
blocks are single keys; Dao et al., "FlashAttention", 2022 (arXiv:2205.14135), whose blocks are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from conformance import Candidate

from ._kit import admitted, check, core, factor

Order = Callable[[int], Sequence[int]]


def in_blocks(name: str, size: int, order: Order) -> Candidate:
    """An online softmax over blocks of so many keys, met in an order of their starts."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        check(query, key, value)
        table = admitted(query, key, keep, causal=causal)
        largest = query.new_full((*query.shape[:3], 1), -torch.inf)
        total = torch.zeros_like(largest)
        mixed = query.new_zeros(*query.shape[:3], value.shape[-1])
        for start in order(-(-key.shape[2] // size)):
            block = slice(start * size, (start + 1) * size)
            logits = query @ key[:, :, block].mT * factor(query, scale)
            logits = logits.masked_fill(~table[..., block], -torch.inf)
            above = torch.maximum(largest, logits.amax(dim=-1, keepdim=True))
            anchor = torch.where(above.isneginf(), 0.0, above)
            shrink, weights = torch.exp(largest - anchor), torch.exp(logits - anchor)
            total = total * shrink + weights.sum(dim=-1, keepdim=True)
            mixed = mixed * shrink + weights @ value[:, :, block]
            largest = above
        return mixed / torch.where(total == 0, 1.0, total)

    return core(name=name)(attend)


def _backwards(blocks: int) -> Sequence[int]:
    return range(blocks)[::-1]


def _shuffled(blocks: int) -> Sequence[int]:
    return torch.randperm(blocks, generator=torch.Generator().manual_seed(blocks)).tolist()


online_blocks_of_1 = in_blocks("online_blocks_of_1", 1, range)
online_blocks_of_2 = in_blocks("online_blocks_of_2", 2, range)
online_blocks_of_16 = in_blocks("online_blocks_of_16", 16, range)
online_blocks_of_64 = in_blocks("online_blocks_of_64", 64, range)
online_backwards = in_blocks("online_backwards", 4, _backwards)
online_shuffled = in_blocks("online_shuffled", 3, _shuffled)
