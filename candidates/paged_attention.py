"""Attention over caches whose items have lengths of their own: in pages, or dense.

Each step is a method: a variation, and each mistake in ``broken/paged.py``, replaces one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

import conformance

PROMISES: Final[dict[str, Any]] = {
    "layout": "paged",
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "gqa", "window", "softcap"],
    "dtypes": ["float32", "float16", "bfloat16"],
}
SIZES: Final = (1, 4, 16)
WRITES: Final = [*PROMISES["features"], "cache_write"]
Pair = tuple[Tensor, Tensor]


class PagedCore:
    """Gathers the keys of each item page by page, and attends them in float32."""

    def __call__(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        block_table: Tensor,
        cache_lengths: Tensor,
        cu_seqlens_q: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Queries ``[B, Lq, H, D]``, or ``[total, H, D]``; caches ``[pages, page, Hkv, D]``."""
        queries = self.cut(query, cu_seqlens_q)
        caches, held = (key_cache, value_cache), cache_lengths.tolist()
        lengths = self.lengths(held, queries) if key is not None else held
        if key is not None and value is not None:
            new = self.cut(key, cu_seqlens_q), self.cut(value, cu_seqlens_q)
            self.write(caches, block_table, held, new)
        answers = [
            self.attend(own, *self.read(caches, block_table, item, lengths), **options)
            for item, own in enumerate(queries)
        ]
        return self.joined(answers, query, value_cache)

    def cut(self, rows: Tensor, offsets: Tensor | None) -> list[Tensor]:
        """The rows of each item, ``[L, H, D]``."""
        if offsets is None:
            return list(rows.unbind(0)) if rows.dim() == len("BLHD") else list(rows.split(1))
        return [rows[first:last] for first, last in pairwise(offsets.tolist())]

    def joined(self, answers: list[Tensor], query: Tensor, value_cache: Tensor) -> Tensor:
        """The answers as the queries lie."""
        if not answers:
            return query.new_zeros(*query.shape[:-1], value_cache.shape[-1])
        return torch.stack(answers) if query.dim() == len("BLHD") else torch.cat(answers)

    def lengths(self, held: list[int], queries: list[Tensor]) -> list[int]:
        """How many keys each item has once the new ones are written."""
        return [count + len(own) for count, own in zip(held, queries, strict=True)]

    def pages(self, table: Tensor, item: int, count: int) -> Tensor:
        """The first pages of an item."""
        return table[item, :count].long()

    def slots(self, caches: Pair, table: Tensor, item: int, places: Tensor) -> Pair:
        """The page, and the place within it, of some tokens of an item."""
        size = caches[0].shape[1]
        pages = self.pages(table, item, -(-(int(places.max()) + 1) // size))
        return pages[places // size], places % size

    def read(
        self, caches: Pair, table: Tensor, item: int, lengths: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        """The keys and values ``[n, Hkv, D]`` of an item, and behind how many its queries end."""
        count = lengths[item]
        if not count:
            return *(cache[0, :0] for cache in caches), 0  # type: ignore[return-value]  # two caches
        page, place = self.slots(caches, table, item, torch.arange(count))
        return caches[0][page, place], caches[1][page, place], count

    def write(
        self, caches: Pair, table: Tensor, held: list[int], new: tuple[list[Tensor], list[Tensor]]
    ) -> None:
        """Put new keys and values behind those that the caches hold."""
        for item, count in enumerate(held):
            rows = len(new[0][item])
            if rows:
                page, place = self.slots(caches, table, item, torch.arange(count, count + rows))
                for cache, each in zip(caches, new, strict=True):
                    cache[page, place] = each[item]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, end: int, **options: Any) -> Tensor:
        """One item, ``[L, H, D]`` in and out."""
        logits = self.logits(query, key, end, **options)
        return (self.weights(logits) @ self.wide(value, query)).transpose(0, 1).to(query.dtype)

    def wide(self, heads: Tensor, query: Tensor) -> Tensor:
        """Keys or values in float32, one head for each of the query's: ``[H, n, D]``."""
        group = query.shape[1] // heads.shape[1]
        return heads.float().repeat_interleave(group, dim=1).transpose(0, 1)

    def logits(
        self,
        query: Tensor,
        key: Tensor,
        end: int,
        *,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int, int] | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """The logits ``[H, Lq, n]``, minus infinity where a key is hidden."""
        factor = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
        logits = query.float().transpose(0, 1) @ self.wide(key, query).mT * factor
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        ahead = torch.arange(len(key)) - self.places(len(query), end)[:, None]
        hidden = (ahead > 0) & causal
        left, right = window or (-1, -1)
        hidden = hidden | ((ahead < -left) & (left >= 0)) | ((ahead > right) & (right >= 0))
        return logits.masked_fill(hidden, -torch.inf)

    def places(self, queries: int, end: int) -> Tensor:
        """Where the queries of an item stand among its keys."""
        return torch.arange(queries) + end - queries

    def weights(self, logits: Tensor) -> Tensor:
        """The softmax over the keys; a query without keys has no weights."""
        empty = (logits == -torch.inf).all(dim=-1, keepdim=True)
        return logits.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)


class SplitPagedCore(PagedCore):
    """Attends the pages of an item in parts, and merges the parts by their log-sum-exps."""

    keys_of_a_part = 5

    def attend(self, query: Tensor, key: Tensor, value: Tensor, end: int, **options: Any) -> Tensor:
        logits, wide = self.logits(query, key, end, **options), self.wide(value, query)
        starts = range(0, max(len(key), 1), self.keys_of_a_part)
        parts = [slice(start, start + self.keys_of_a_part) for start in starts]
        outputs = torch.stack([self.weights(logits[..., p]) @ wide[:, p] for p in parts])
        sums = torch.stack([logits[..., part].logsumexp(dim=-1) for part in parts])
        return self.merged(outputs, sums).transpose(0, 1).to(query.dtype)

    def merged(self, outputs: Tensor, sums: Tensor) -> Tensor:
        """The outputs ``[parts, H, Lq, D]``, weighted by the log-sum-exps ``[parts, H, Lq]``."""
        empty = (sums == -torch.inf).all(dim=0)
        shares = sums.masked_fill(empty, 0.0).softmax(dim=0).masked_fill(empty, 0.0)
        return (shares[..., None] * outputs).sum(dim=0)


class PageByPageCore(PagedCore):
    """Reads one page at a time with a running maximum and a running sum."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, end: int, **options: Any) -> Tensor:
        logits, wide = self.logits(query, key, end, **options), self.wide(value, query)
        largest = logits.new_full(logits.shape[:2], -torch.inf)
        total, mixed = torch.zeros_like(largest), logits.new_zeros(*largest.shape, wide.shape[-1])
        for start in range(0, len(key), 4):
            part = logits[..., start : start + 4]
            new = torch.maximum(largest, part.amax(dim=-1))
            shift = new.masked_fill(new == -torch.inf, 0.0)
            scaled, old = torch.exp(part - shift[..., None]), torch.exp(largest - shift)
            total = total * old + scaled.sum(dim=-1)
            mixed = mixed * old[..., None] + scaled @ wide[:, start : start + 4]
            largest = new
        answer = mixed / total.masked_fill(total == 0.0, 1.0)[..., None]
        return answer.transpose(0, 1).to(query.dtype)


def with_table(indptr: Tensor, indices: Tensor, last: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """A table and lengths for pages in compressed rows."""
    counts = indptr.diff()
    rows = [indices[first:end] for first, end in pairwise(indptr.tolist())]
    table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    return table, ((counts - 1) * size + last).clamp(min=0)


paged = conformance.core(name="paged", page_sizes=SIZES, **PROMISES)(PagedCore())
paged_in_parts = conformance.core(name="paged_in_parts", page_sizes=SIZES, **PROMISES)(
    SplitPagedCore()
)
paged_written = conformance.core(
    name="paged_written", page_sizes=[2, 16], **{**PROMISES, "features": WRITES}
)(PageByPageCore())
paged_sequences_written = conformance.core(
    name="paged_sequences_written",
    queries="varlen",
    page_sizes=[3],
    **{**PROMISES, "features": WRITES},
)(SplitPagedCore())


@conformance.core(name="paged_by_heads", page_axes="HND", page_sizes=[1, 8], **PROMISES)
def paged_by_heads(query: Tensor, key_cache: Tensor, value_cache: Tensor, **options: Any) -> Tensor:
    """Pages ``[pages, Hkv, page, D]``: heads outside of slots."""
    return PagedCore()(query, key_cache.transpose(1, 2), value_cache.transpose(1, 2), **options)


@conformance.core(
    name="paged_in_rows", page_index="csr", queries="varlen", page_sizes=SIZES, **PROMISES
)
def paged_in_rows(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    last_page_lengths: Tensor,
    cu_seqlens_q: Tensor,
    **options: Any,
) -> Tensor:
    """Compressed rows of pages, and queries one sequence after another."""
    size = key_cache.shape[1]
    table, lengths = with_table(kv_indptr, kv_indices, last_page_lengths, size)
    own: dict[str, Any] = {"block_table": table, "cache_lengths": lengths}
    return PagedCore()(query, key_cache, value_cache, cu_seqlens_q=cu_seqlens_q, **own, **options)


@conformance.core(name="paged_decoding", queries="single", page_sizes=SIZES, **PROMISES)
def paged_decoding(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    block_table: Tensor,
    cache_lengths: Tensor,
    scale: float | None = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
    causal: bool = False,
) -> Tensor:
    """One query an item, ``[B, H, D]``: the whole table is gathered, and what is unused hidden."""
    del causal  # a query at the end sees every key
    heads, group = key_cache.shape[2], query.shape[1] // key_cache.shape[2]
    pages = block_table.clamp(min=0).long()
    keys, values = (cache[pages].flatten(1, 2).float() for cache in (key_cache, value_cache))
    place = torch.arange(keys.shape[1]) - cache_lengths[:, None] + 1
    left = -1 if window is None else window[0]
    seen = (place <= 0) & ((place >= -left) | (left < 0))
    keys, values = (each.where(seen[..., None, None], 0.0) for each in (keys, values))
    factor = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
    grouped = query.float().unflatten(1, (heads, group))
    logits = torch.einsum("bhgd,bkhd->bhgk", grouped, keys) * factor
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~seen[:, None, None], -torch.inf)
    empty = ~seen.any(dim=-1)[:, None, None, None]
    weights = logits.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    return torch.einsum("bhgk,bkhd->bhgd", weights, values).flatten(1, 2).to(query.dtype)


@conformance.core(
    name="dense_with_lengths",
    keywords={"cache_lengths": "cache_seqlens"},
    **{**PROMISES, "layout": "BSHD", "features": [*WRITES, "cache_lengths"]},
)
def dense_with_lengths(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    **options: Any,
) -> Tensor:
    """Dense caches ``[B, S, Hkv, D]``: a page an item."""
    table = torch.arange(len(query))[:, None]
    own = {"block_table": table, "cache_lengths": cache_seqlens}
    return PagedCore()(query, key_cache, value_cache, **own, **options)


@conformance.core(
    name="dense_sequences_used",
    keywords={"cache_lengths": "seqused_k"},
    **{**PROMISES, "layout": "BHSD", "features": [*PROMISES["features"], "cache_lengths"]},
)
def dense_sequences_used(
    query: Tensor, key: Tensor, value: Tensor, *, seqused_k: Tensor, **options: Any
) -> Tensor:
    """Keys ``[B, Hkv, S, D]`` of which only the first are in use."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    own = {"block_table": torch.arange(len(query))[:, None], "cache_lengths": seqused_k}
    return PagedCore()(query, key, value, **own, **options).transpose(1, 2)


@conformance.core(signature="flash_attn_kvcache", page_sizes=[4, 16])
def flash_attn_with_kvcache(  # noqa: PLR0917 (as the public function takes them)
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 (as the public function has it)
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Tensor:
    """FlashAttention's function of caches in plain torch."""
    if cache_seqlens is None or block_table is None:
        msg = "caches come with their lengths and a table"
        raise ValueError(msg)
    own: dict[str, Any] = {"block_table": block_table, "cache_lengths": cache_seqlens}
    options: dict[str, Any] = {"scale": softmax_scale, "causal": causal}
    options |= {"window": window_size, "softcap": softcap, "key": k, "value": v}
    return PagedCore()(q, k_cache, v_cache, **own, **options)


@conformance.core(signature="vllm_paged")
def flash_attn_varlen_func(  # noqa: PLR0917 (as the public function takes them)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    seqused_k: Tensor,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 (as the public function has it)
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Tensor:
    """VLLM's function of paged caches in plain torch."""
    if int(seqused_k.max()) > max_seqlen_k or int(cu_seqlens_q.diff().max()) > max_seqlen_q:
        msg = f"there are more than {max_seqlen_q} queries or {max_seqlen_k} keys"
        raise ValueError(msg)
    own = {"block_table": block_table, "cache_lengths": seqused_k, "cu_seqlens_q": cu_seqlens_q}
    options: dict[str, Any] = {"scale": softmax_scale, "causal": causal}
    return PagedCore()(q, k, v, **own, **options, window=window_size, softcap=softcap)


@conformance.core(signature="flashinfer")
def batch_decode(  # noqa: PLR0917 (as the public plan has them)
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    paged_kv_indptr: Tensor,
    paged_kv_indices: Tensor,
    paged_kv_last_page_len: Tensor,
    sm_scale: float | None = None,
    logits_soft_cap: float | None = None,
) -> Tensor:
    """Decoding with what FlashInfer's plan takes: one query an item."""
    rows = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
    table, lengths = with_table(*rows, k_cache.shape[1])
    own: dict[str, Any] = {"block_table": table, "cache_lengths": lengths}
    return PagedCore()(q, k_cache, v_cache, **own, scale=sm_scale, softcap=logits_soft_cap)


__conformance__: Sequence[str] = (
    "paged",
    "paged_in_parts",
    "paged_written",
    "paged_sequences_written",
    "paged_by_heads",
    "paged_in_rows",
    "paged_decoding",
    "dense_with_lengths",
    "dense_sequences_used",
    "flash_attn_with_kvcache",
    "flash_attn_varlen_func",
    "batch_decode",
)
