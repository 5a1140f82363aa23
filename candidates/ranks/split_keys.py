"""Split-key decoding: every rank has all queries and its part of the keys; the answers are merged.

Dao et al., "Flash-Decoding for long-context inference", 2023; the merge is that of Milakov and
Gimelshein, 2018 (arXiv:1805.02867).
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

import conformance

from ._communication import copied, lengths_of, summed

PARTS = conformance.Ranks(2, key="sequence", value="sequence")


class SplitKeys:
    """Attention over a part of the keys on each rank, step by step; a mistake replaces a step."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keep: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attend ``query [B, H, Lq, D]``, which all ranks have, to each rank's part of the keys."""
        keys, values = lengths_of(key.shape[2], value.shape[2])
        if keys != values or (keep is not None and keep.shape[-1] not in (1, sum(keys))):
            msg = f"{sum(keys)} keys with {sum(values)} values, or a mask for others"
            raise ValueError(msg)
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        # Sums in half precision would round once for each rank.
        wide = torch.promote_types(query.dtype, torch.float32)
        logits = (self.own_queries(query).to(wide) * factor) @ key.to(wide).transpose(-1, -2)
        if keep is not None and keep.shape[-1] > 1:
            first = sum(keys[: dist.get_rank()])
            keep = keep[..., first : first + key.shape[2]]
        if keep is not None:
            logits = logits.masked_fill(~keep, -math.inf)
        return self.merged(logits, value.to(wide)).to(query.dtype)

    def own_queries(self, query: Tensor) -> Tensor:
        """The queries, whose gradient all ranks add up."""
        return copied(query)

    def merged(self, logits: Tensor, value: Tensor) -> Tensor:
        """The answers of all ranks, each relative to the largest logit of all."""
        largest = self.largest(logits)
        powers = (logits - largest.masked_fill(largest.isneginf(), 0.0)).exp()
        total = self.total(powers.sum(-1, keepdim=True))
        mixed = self.total(powers @ value)
        return mixed / total.masked_fill(total == 0, 1.0)

    def largest(self, logits: Tensor) -> Tensor:
        """The largest logit of each row on any rank."""
        own = logits.new_full((*logits.shape[:3], 1), -math.inf)
        if logits.shape[-1]:
            own = logits.detach().amax(-1, keepdim=True)
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        return own

    def total(self, part: Tensor) -> Tensor:
        """The sum over all ranks."""
        return summed(part)


split_keys = conformance.core(
    name="split_keys",
    masks=["keep"],
    empty_rows="zeros",
    features=["scale"],
    dtypes=["float32", "bfloat16"],
    ranks=PARTS,
    expected_failures={
        "mask.no-leak-nonfinite": "a weight of zero does not stop a NaN in a value: 0 * NaN is NaN",
    },
)(SplitKeys())
