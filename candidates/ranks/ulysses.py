"""All-to-all attention: ranks exchange their part of the sequence for all of it with a few heads.

Jacobs et al., "DeepSpeed Ulysses", 2023 (arXiv:2309.14509).
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

import conformance

from ._communication import exchanged, matching_lengths
from .ring import on_ring


def some_heads(part: Tensor, lengths: list[int]) -> Tensor:
    """All tokens ``[h, B, L, D]`` with this rank's share of the heads, for ``[B, H, l, D]``.

    Heads of zeros make their number a multiple of the ranks'.
    """
    count = dist.get_world_size()
    batch, heads, length, width = part.shape
    share = -(-heads // count)
    by_head = part.new_zeros(share * count, batch, length, width)
    by_head[:heads] = part.transpose(0, 1)
    sent = [share * batch * length * width] * count
    received = [share * batch * other * width for other in lengths]
    flat = exchanged(by_head.flatten(), sent, received)
    parts = flat.split(received)
    shaped = (
        each.reshape(share, batch, other, width) for each, other in zip(parts, lengths, strict=True)
    )
    return torch.cat(list(shaped), dim=2)


def own_tokens(answer: Tensor, lengths: list[int], heads: int) -> Tensor:
    """This rank's tokens ``[B, H, l, D]`` of the answers ``[h, B, L, D]`` for all heads."""
    share, batch, _, width = answer.shape
    own = lengths[dist.get_rank()]
    flat = torch.cat([each.flatten() for each in answer.split(lengths, dim=2)])
    sent = [share * batch * length * width for length in lengths]
    received = [share * batch * own * width] * len(lengths)
    back = exchanged(flat, sent, received)
    return back.reshape(len(lengths) * share, batch, own, width)[:heads].transpose(0, 1)


@conformance.core(
    causal="bottom-right", empty_rows="zeros", features=["scale"], ranks=on_ring("sequence")
)
def all_to_all_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend from this rank's queries ``[B, H, Lq, D]`` to the keys of all ranks."""
    queries, keys = matching_lengths(query, key, value)
    if key.shape[1] != query.shape[1]:
        msg = f"{query.shape[1]} heads with {key.shape[1]} key/value heads"
        raise ValueError(msg)
    whole = some_heads(query, queries)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = (whole * factor) @ some_heads(key, keys).transpose(-1, -2)
    if not causal:
        weights = logits.softmax(-1)
    else:
        rows, columns = torch.arange(sum(queries))[:, None], torch.arange(sum(keys))
        seen = columns - rows <= sum(keys) - sum(queries)
        filled = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
        weights = filled.softmax(-1).masked_fill(~seen, 0.0)
    return own_tokens(weights @ some_heads(value, keys), queries, query.shape[1])
