"""The softmax, written in other ways than ``softmax``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor, soften


@core()
def powers_of_two(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``exp2``, with log2(e) folded into the query together with the scale, as kernels do it."""
    table = admitted(query, key, keep, causal=causal)
    logits = (query * (factor(query, scale) * math.log2(math.e))) @ key.mT
    logits = logits.masked_fill(~table, -torch.inf)
    largest = logits.amax(dim=-1, keepdim=True)
    weights = torch.exp2(logits - torch.where(largest.isneginf(), 0.0, largest))
    return weights @ value / weights.sum(dim=-1, keepdim=True).clamp(min=1e-37)


@core()
def exponentials_of_log_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The logarithms of the weights first."""
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    return torch.log_softmax(logits, dim=-1).exp().masked_fill(~table, 0.0) @ value


@core()
def minus_log_sum_exp(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """One exponential of the logits less their log-sum-exp: no division."""
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    size = torch.logsumexp(logits, dim=-1, keepdim=True)
    return torch.exp(logits - size.nan_to_num(neginf=0.0)) @ value


@core(empty_rows="any")
def multiplied_by_the_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The maximum over live keys, the 0/1 mask on the exponentials, then the sum of the live.

    A row without keys divides zero by zero; nothing is promised about it.
    """
    table = admitted(query, key, keep, causal=causal)
    logits = query @ key.mT * factor(query, scale)
    largest = torch.where(table, logits, -torch.inf).amax(dim=-1, keepdim=True)
    weights = torch.exp((logits - largest).clamp(max=0.0)) * table
    return weights / weights.sum(dim=-1, keepdim=True) @ value


@core()
def two_passes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The sum of exponentials in a first pass over blocks of keys, the mixture in a second."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal)
    logits = (query @ key.mT * factor(query, scale)).masked_fill(~table, -torch.inf)
    largest = logits.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    blocks = [torch.exp(block - largest) for block in logits.split(7, dim=-1)]
    total = sum((block.sum(dim=-1, keepdim=True) for block in blocks), torch.zeros(()))
    inverse = 1 / torch.where(total == 0, 1.0, total)
    mixed = torch.zeros((), dtype=query.dtype)
    for weights, part in zip(blocks, value.split(7, dim=-2), strict=True):
        mixed = mixed + (weights * inverse) @ part
    return mixed


@core(masks=["lengths"], causal=None)
def keys_less_their_mean(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The mean key taken off, which moves every logit of a row alike (SageAttention).

    Only keys that count are averaged: what is hidden must not even be rounded with.
    """
    seen = torch.ones(key.shape[0], 1, key.shape[2], 1, dtype=torch.bool)
    if lengths is not None:
        seen = (torch.arange(key.shape[2]) < lengths.unsqueeze(-1))[:, None, :, None]
    number = seen.sum(dim=-2, keepdim=True).clamp(min=1)
    mean = torch.where(seen, key, 0.0).sum(dim=-2, keepdim=True) / number
    logits = query @ (key - mean).mT * factor(query, scale)
    return soften(logits, seen.mT) @ value
