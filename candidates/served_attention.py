"""Caches beside other words: codes and latents in pages, structured masks, log-sum-exps."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

import conformance
from conformance import Semantics

from .latent_attention import SCALE
from .paged_attention import PROMISES, PagedCore
from .structured_attention import StructuredCore

PAGED: Final[dict[str, Any]] = {**PROMISES, "features": ["scale", "gqa"], "page_sizes": [1, 4]}
CODES: Final[dict[str, Any]] = {**PAGED, "kv_format": "float8_e4m3fn", "dtypes": ["bfloat16"]}
STRUCTURES: Final = ("tree", "indices", "prefix", "chunks", "segments")
STRUCTURED: Final[dict[str, Any]] = {
    **PAGED,
    "masks": STRUCTURES,
    "dtypes": ["float32"],
    "queries": "varlen",
}
LATENT: Final[dict[str, Any]] = {
    "layout": "latent",
    "page_sizes": [1, 4],
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["scale", "lse"],
    "semantics": Semantics(scale=SCALE),
    "geometry": {"head_size": 20, "value_head_size": 16},
}


class CodedPagedCore(PagedCore):
    """Turns the codes of all pages to numbers before it reads any."""

    def numbers(self, codes: Tensor, scale: Tensor) -> Tensor:
        """Codes ``[pages, page, Hkv, D]`` times scales ``[]``, ``[Hkv]`` or a slot's."""
        return codes.float() * (scale if scale.dim() == 0 else scale.unsqueeze(-1))

    def __call__(  # type: ignore[override]  # every call has scales
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        key_scale: Tensor,
        value_scale: Tensor,
        **options: Any,
    ) -> Tensor:
        """Attend caches of codes."""
        key = self.numbers(key_cache, key_scale)
        return super().__call__(query, key, self.numbers(value_cache, value_scale), **options)


class StructuredPagedCore(PagedCore):
    """Attends what the structure of each item shows of its own keys; packed queries."""

    structures = StructuredCore()

    def seen(self, given: dict[str, Any], item: int, rows: slice, count: int) -> Tensor:
        """The keys that a structure shows to the queries of an item: ``[Lq, n]``."""
        own, queries = self.structures, rows.stop - rows.start
        ahead = torch.arange(count) - self.places(queries, count)[:, None]
        shown = torch.ones(1, 1, queries, count, dtype=torch.bool)
        if "parents" in given:
            shown = own.tree(given["parents"][None, rows], count)
        if "key_indices" in given:
            shown = own.indices(given["key_indices"][None, rows], count)
        if "prefix_lengths" in given:
            shown = own.prefix(given["prefix_lengths"][item : item + 1], ahead)
        if "chunk" in given:
            shown = own.chunks(given["chunk"], queries, count)
        if "query_segments" in given:
            keys = given["key_segments"][item : item + 1, :count]
            shown = own.segments(given["query_segments"][None, rows], keys)
        return shown[0, 0]

    def __call__(  # type: ignore[override]  # packed queries alone, nothing is written
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        block_table: Tensor,
        cache_lengths: Tensor,
        cu_seqlens_q: Tensor,
        causal: bool = False,
        scale: float | None = None,
        **structure: Any,
    ) -> Tensor:
        """Attend; ``structure`` holds the keywords of one structure, or none."""
        answers, caches, offsets = [], (key_cache, value_cache), cu_seqlens_q.tolist()
        for item, own in enumerate(self.cut(query, cu_seqlens_q)):
            key, value, end = self.read(caches, block_table, item, cache_lengths.tolist())
            logits = self.logits(own, key, end, causal=causal, scale=scale)
            shown = self.seen(structure, item, slice(*offsets[item : item + 2]), len(key))
            weights = self.weights(logits.masked_fill(~shown, -torch.inf))
            answers.append((weights @ self.wide(value, own)).transpose(0, 1).to(query.dtype))
        return self.joined(answers, query, value_cache)


class LatentPagedCore(PagedCore):
    """One key for all heads, whose first channels are the value; with log-sum-exps."""

    value_size = 16

    def __call__(  # type: ignore[override]  # one cache
        self,
        query: Tensor,
        latent_cache: Tensor,
        *,
        block_table: Tensor,
        cache_lengths: Tensor,
        causal: bool = False,
        scale: float | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend ``query [B, Lq, H, R + P]`` to pages ``[pages, page, R + P]``."""
        cache = latent_cache.unsqueeze(2)
        caches = cache, cache[..., : self.value_size]
        factor = SCALE if scale is None else scale
        answers, sums = [], []
        for item, own in enumerate(query):
            key, value, end = self.read(caches, block_table, item, cache_lengths.tolist())
            logits = self.logits(own, key, end, causal=causal, scale=factor)
            answers.append(
                (self.weights(logits) @ self.wide(value, own)).transpose(0, 1).to(query.dtype)
            )
            sums.append(self.log_sum_exp(logits))
        output = self.joined(answers, query, caches[1])
        batch, rows, heads = query.shape[:3]
        lse = torch.stack(sums) if sums else query.new_zeros(batch, heads, rows).float()
        return (output, lse) if return_lse else output

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """The logarithm of the sum of each row's exponentials."""
        if not logits.shape[-1]:
            return logits.new_full(logits.shape[:-1], -math.inf)
        return logits.logsumexp(dim=-1)


class PackedLogSumExps:
    """Packed sequences with slopes of the caller, and log-sum-exps of all tokens ``[total, H]``."""

    def returned(self, sums: list[Tensor]) -> Tensor:
        """The log-sum-exps of sequences, one after another."""
        return torch.cat(sums)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        alibi_slopes: Tensor,
        causal: bool = False,
        return_lse: bool = False,
        **longest: int,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend ``query [total, H, D]``, sequence by sequence."""
        del longest
        if key.shape[0] != value.shape[0] or key.shape[-1] != query.shape[-1]:
            msg = f"the shapes {query.shape}, {key.shape}, {value.shape} do not fit"
            raise ValueError(msg)
        slopes = alibi_slopes.expand(len(cu_seqlens_q) - 1, -1)
        output = query.new_zeros(*query.shape[:2], value.shape[-1])
        sums = [query.new_zeros(0, query.shape[1])]
        for item, slope in enumerate(slopes):
            rows = slice(*cu_seqlens_q[item : item + 2].tolist())
            columns = slice(*cu_seqlens_k[item : item + 2].tolist())
            own, heads = query[rows].transpose(0, 1), key[columns].transpose(0, 1)
            places = torch.arange(own.shape[1]) + heads.shape[1] - own.shape[1]
            ahead = torch.arange(heads.shape[1]) - places[:, None]
            logits = (
                own @ heads.mT / math.sqrt(query.shape[-1]) - slope[:, None, None] * ahead.abs()
            )
            if causal:
                logits = logits.masked_fill(ahead > 0, -math.inf)
            lse = logits.logsumexp(dim=-1)
            finite = lse.masked_fill(lse.isneginf(), 0.0)
            weights = (logits - finite[..., None]).exp()
            output[rows] = (weights @ value[columns].transpose(0, 1)).transpose(0, 1)
            sums.append(lse.mT)
        return (output, self.returned(sums)) if return_lse else output


paged_codes = conformance.core(name="paged_codes", **CODES, kv_scales="head")(CodedPagedCore())
paged_codes_by_slot = conformance.core(
    name="paged_codes_by_slot", **{**CODES, "kv_format": "int8"}, kv_scales="slot"
)(CodedPagedCore())
paged_structures = conformance.core(name="paged_structures", **STRUCTURED)(StructuredPagedCore())
paged_latents = conformance.core(name="paged_latents", **LATENT)(LatentPagedCore())
PACKED: Final[dict[str, Any]] = {
    "layout": "varlen",
    "causal": "bottom-right",
    "empty_rows": "zeros",
    "features": ["lse", "alibi_slopes"],
    "lse_shape": "BQH",
}
packed_log_sum_exps = conformance.core(name="packed_log_sum_exps", **PACKED)(PackedLogSumExps())
