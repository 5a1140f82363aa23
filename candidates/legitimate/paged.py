"""Cores over caches in unusual ways: a page a slot, slots as one long row, lengths as a mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kit import core


def _softmax(logits: Tensor, seen: Tensor) -> Tensor:
    """The weights of the keys that are seen; none for a query without keys."""
    empty = ~seen.any(dim=-1, keepdim=True)
    weights = logits.masked_fill(~seen, -math.inf).masked_fill(empty, 0.0).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0)


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """All items at once, ``[B, L, H, D]``, with ``seen [B, Lq, Lk]``; unseen slots are zeros."""
    used = seen.any(dim=1)[..., None, None]
    group = query.shape[2] // key.shape[2]
    key, value = (
        each.where(used, 0.0).repeat_interleave(group, dim=2).float() for each in (key, value)
    )
    logits = torch.einsum("bqhd,bkhd->bhqk", query.float(), key) / math.sqrt(query.shape[-1])
    weights = _softmax(logits, seen[:, None].expand(logits.shape))
    return torch.einsum("bhqk,bkhd->bqhd", weights, value).to(query.dtype)


def _seen(lengths: Tensor, queries: int, slots: int, *, causal: bool) -> Tensor:
    """The slots that each query sees, where it stands at the end of its item."""
    slot, places = torch.arange(slots), torch.arange(queries) - queries
    ends = torch.where(torch.tensor(causal), places + 1, 0)
    return slot < (lengths[:, None] + ends)[..., None]


@core(
    layout="paged", page_index="csr", queries="single", page_sizes=[1], features=["gqa"], masks=[]
)
def pages_of_one_slot(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    last_page_lengths: Tensor,
    causal: bool = False,
) -> Tensor:
    """Every token has a page, as where requests map to tokens; all items in one product."""
    del last_page_lengths, causal  # one slot is full, and a query at the end sees every key
    pages = kv_indices.long()
    key, value = (cache[pages, 0].float() for cache in (key_cache, value_cache))
    item = torch.arange(len(query)).repeat_interleave(kv_indptr.diff())
    seen = item == torch.arange(len(query))[:, None]
    group = query.shape[1] // key_cache.shape[2]
    key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    logits = torch.einsum("bhd,khd->hbk", query.float(), key) / math.sqrt(query.shape[-1])
    weights = _softmax(logits, seen.expand(logits.shape))
    own = [
        torch.einsum("hk,khd->hd", weights[:, b][:, row], value[row]) for b, row in enumerate(seen)
    ]
    empty = query.new_zeros(0, query.shape[1], value.shape[-1])
    return torch.stack(own).to(query.dtype) if own else empty


@core(
    layout="paged",
    page_axes="HND",
    page_sizes=[2, 5],
    features=["gqa", "cache_write"],
    masks=[],
)
def slots_in_one_row(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    block_table: Tensor,
    cache_lengths: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
) -> Tensor:
    """Slots have numbers over all pages: new keys are put there, then the whole table is read."""
    size, queries = key_cache.shape[2], query.shape[1]
    slot = torch.arange(block_table.shape[1] * size)
    numbers = block_table.long()[:, slot // size] * size + slot % size
    new = numbers.gather(1, cache_lengths.long()[:, None] + torch.arange(queries))
    for cache, each in ((key_cache, key), (value_cache, value)):
        cache[new // size, :, new % size] = each
    page, place = numbers.clamp(min=0) // size, numbers.clamp(min=0) % size
    seen = _seen(cache_lengths + queries, queries, len(slot), causal=causal)
    return _attend(query, key_cache[page, :, place], value_cache[page, :, place], seen)


@core(layout="BSHD", features=["gqa", "cache_lengths"], masks=[])
def lengths_as_a_mask(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    cache_lengths: Tensor,
    causal: bool = False,
) -> Tensor:
    """Dense caches, whose unused slots are hidden by a mask."""
    seen = _seen(cache_lengths, query.shape[1], key_cache.shape[1], causal=causal)
    return _attend(query, key_cache, value_cache, seen)
