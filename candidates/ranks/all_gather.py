"""Context parallelism by gathering all keys: each rank attends from its own queries.

Grattafiori et al., "The Llama 3 Herd of Models", 2024 (arXiv:2407.21783), section 3.3.2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import conformance

PARTS = conformance.Ranks(
    2, query="sequence", key="sequence", value="sequence", output="sequence", seconds=10.0
)


def lengths_of(length: int, group: Any = None) -> list[int]:
    """The length of each rank's part."""
    every = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, torch.tensor([length]), group=group)
    return [int(each) for each in every]


class Gathered(torch.autograd.Function):
    """The parts of all ranks in a row; the way back adds up what each rank has for a part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, lengths: list[int]) -> Tensor:
        """Gather ``part [B, H, L, D]`` along the sequence."""
        ctx.lengths = lengths
        longest = max(lengths)
        padded = part.new_zeros(*part.shape[:2], longest, part.shape[3])
        padded[:, :, : part.shape[2]] = part
        every = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(every, padded)
        kept = [each[:, :, :length] for each, length in zip(every, lengths, strict=True)]
        return torch.cat(kept, dim=2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The sum of all ranks' gradients for this rank's part."""
        total = gradient.contiguous()
        dist.all_reduce(total)
        start = sum(ctx.lengths[: dist.get_rank()])
        return total[:, :, start : start + ctx.lengths[dist.get_rank()]], None


def gathered(part: Tensor, lengths: list[int]) -> Tensor:
    """The parts ``[B, H, L, D]`` of all ranks along the sequence, each with its gradient."""
    whole: Tensor = Gathered.apply(part, lengths)  # type: ignore[no-untyped-call]  # torch's own
    return whole


@conformance.core(causal="bottom-right", empty_rows="zeros", features=["scale"], ranks=PARTS)
def all_gather_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend from this rank's queries ``[B, H, Lq, D]`` to the keys of all ranks."""
    queries, keys = lengths_of(query.shape[2]), lengths_of(key.shape[2])
    values = lengths_of(value.shape[2])
    if keys != values:
        msg = f"{sum(keys)} keys with {sum(values)} values"
        raise ValueError(msg)
    key, value = gathered(key, keys), gathered(value, values)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = (query * factor) @ key.transpose(-1, -2)
    if causal:
        first = sum(queries[: dist.get_rank()])
        rows = torch.arange(first, first + query.shape[2])[:, None]
        seen = torch.arange(sum(keys)) - rows <= sum(keys) - sum(queries)
        logits = logits.masked_fill(~seen, -math.inf)
        weights = logits.softmax(-1).masked_fill(~seen, 0.0)
    else:
        weights = logits.softmax(-1)
    return weights @ value
