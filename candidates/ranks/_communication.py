"""Collectives with gradients: what is sent forward comes home on the way back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def lengths_of(*lengths: int) -> list[list[int]]:
    """Some lengths of every rank's part: a list by rank for each of them."""
    own = torch.tensor(lengths)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return torch.stack(every).T.tolist()


def matching_lengths(query: Tensor, key: Tensor, value: Tensor) -> tuple[list[int], list[int]]:
    """The lengths of all ranks' queries and keys ``[B, H, L, D]``; raises ValueError on all.

    Where one rank has other numbers of keys and values, all raise: none waits for another.
    """
    queries, keys, values = lengths_of(query.shape[2], key.shape[2], value.shape[2])
    if keys != values:
        msg = f"{sum(keys)} keys with {sum(values)} values"
        raise ValueError(msg)
    return queries, keys


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, lengths: list[int]) -> Tensor:
        """The parts of all ranks in a row."""
        ctx.lengths = lengths
        padded = part.new_zeros(*part.shape[:2], max(lengths), part.shape[3])
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
        rank = dist.get_rank()
        start = sum(ctx.lengths[:rank])
        return total[:, :, start : start + ctx.lengths[rank]], None


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """The tensor, which every rank has."""
        del ctx
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The sum of what each rank did with it."""
        del ctx
        total = gradient.contiguous()
        dist.all_reduce(total)
        return total


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        """The sum over all ranks, on each of them."""
        del ctx
        total = part.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of the sum, which every rank has: it is that of each summand."""
        del ctx
        return gradient


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """So many numbers to each rank, and so many from each."""
        ctx.sizes = sent, received
        result = flat.new_empty(sum(received))
        dist.all_to_all_single(result, flat.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Each gradient goes the way back."""
        sent, received = ctx.sizes
        result = gradient.new_empty(sum(sent))
        dist.all_to_all_single(result, gradient.contiguous(), sent, received)
        return result, None, None


def gathered(part: Tensor, lengths: list[int]) -> Tensor:
    """The parts ``[B, H, L, D]`` of all ranks along the sequence."""
    whole: Tensor = _Gathered.apply(part, lengths)  # type: ignore[no-untyped-call]  # torch's own
    return whole


def copied(tensor: Tensor) -> Tensor:
    """A tensor that every rank has, whose gradient is the sum of what all ranks do with it."""
    result: Tensor = _Copied.apply(tensor)  # type: ignore[no-untyped-call]  # torch's own
    return result


def summed(part: Tensor) -> Tensor:
    """The sum over all ranks, which every rank has then."""
    result: Tensor = _Summed.apply(part)  # type: ignore[no-untyped-call]  # torch's own
    return result


def exchanged(flat: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Numbers sent to each rank, in a row; those received from each, in a row."""
    result: Tensor = _Exchanged.apply(flat, sent, received)  # type: ignore[no-untyped-call]  # torch's own
    return result
