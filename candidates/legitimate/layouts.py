"""Heads that lie in other orders: after the tokens, packed in one tensor, sequences in a row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ._kit import admitted, check, core, factor, soften

SEQUENCES: Final[dict[str, Any]] = {
    "layout": "varlen",
    "masks": [],
    "features": ["scale", "gqa"],
    "expected_failures": [],
}


@core(layout="BSHD", features=["scale", "gqa"])
def tokens_before_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Sums over ``[B, S, H, D]`` as it lies; the heads of a group share their keys by an axis."""
    check(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    grouped = query.unflatten(2, (key.shape[2], -1))
    logits = torch.einsum("bqhgd,bkhd->bhgqk", grouped, key) * factor(query, scale)
    table = admitted(query.transpose(1, 2), key.transpose(1, 2), keep, causal=causal)
    weights = soften(logits.flatten(1, 2), table).unflatten(1, (key.shape[2], -1))
    return torch.einsum("bhgqk,bkhd->bqhgd", weights, value).flatten(2, 3)


@core(layout="BSHD", without=["gradients"])
def head_by_head_in_place(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Each head in strided views, written into its channels of the answer."""
    check(query, key.transpose(1, 2), value.transpose(1, 2))
    if query.shape[2] != key.shape[2]:
        msg = f"there are {query.shape[2]} heads, but {key.shape[2]} of keys"
        raise ValueError(msg)
    output = query.new_empty(*query.shape[:3], value.shape[3])
    table = admitted(query.transpose(1, 2), key.transpose(1, 2), keep, causal=causal)
    for head in range(query.shape[2]):
        own = table if keep is None else table[:, min(head, table.shape[1] - 1)]
        logits = query[:, :, head] @ key[:, :, head].mT * factor(query, scale)
        output[:, :, head] = soften(logits, own) @ value[:, :, head]
    return output


@core(layout="packed-qkv")
def packed_by_view(
    qkv: Tensor, *, keep: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """All three turned at once, then sums over views of the one tensor."""
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    logits = query @ key.mT * factor(query, scale)
    return (soften(logits, admitted(query, key, keep, causal=causal)) @ value).transpose(1, 2)


@core(layout="packed-qkv")
def packed_by_copy(
    qkv: Tensor, *, keep: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Three contiguous copies in torch's kernel; rows without keys are mended behind it."""
    query, key, value = (part.squeeze(2).transpose(1, 2).contiguous() for part in qkv.split(1, 2))
    table = admitted(query, key, keep, causal=causal)
    empty = ~table.any(dim=-1, keepdim=True)
    answer = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=table | empty, scale=scale
    )
    return answer.masked_fill(empty, 0.0).transpose(1, 2)


@core(layout="packed-kv", features=["scale", "gqa"])
def packed_keys_repeated(
    query: Tensor,
    kv: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The packed heads are repeated as often as they are shared, both at once."""
    heads = query.transpose(1, 2)
    key, value = kv.repeat_interleave(query.shape[2] // kv.shape[3], 3).transpose(1, 3).unbind(2)
    check(heads, key, value)
    logits = heads @ key.mT * factor(query, scale)
    return (soften(logits, admitted(heads, key, keep, causal=causal)) @ value).transpose(1, 2)


@core(layout="packed-kv")
def packed_keys_in_blocks(
    query: Tensor,
    kv: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Blocks of packed keys with a running maximum; a block is cut from the tensor once."""
    heads = query.transpose(1, 2)
    table = admitted(heads, kv[:, :, 0].transpose(1, 2), keep, causal=causal)
    largest = heads.new_full((*heads.shape[:3], 1), -torch.inf)
    total, mixed = torch.zeros_like(largest), torch.zeros_like(heads)
    for start in range(0, kv.shape[1], 4):
        key, value = kv[:, start : start + 4].transpose(1, 3).unbind(2)
        logits = heads @ key.mT * factor(query, scale)
        logits = logits.masked_fill(~table[..., start : start + 4], -torch.inf)
        above = torch.maximum(largest, logits.amax(dim=-1, keepdim=True))
        anchor = torch.where(above.isneginf(), 0.0, above)
        shrink, weights = torch.exp(largest - anchor), torch.exp(logits - anchor)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        mixed, largest = mixed * shrink + weights @ value, above
    return (mixed / torch.where(total == 0, 1.0, total)).transpose(1, 2)


def _fit(query: Tensor, key: Tensor, value: Tensor, offsets: tuple[Tensor, Tensor]) -> None:
    """Offsets that end where the tokens end, for as many sequences; raises ValueError."""
    ends = [int(each[-1]) for each in offsets]
    if ends != [len(query), len(key)] or len(key) != len(value):
        msg = f"the offsets end at {ends}, but there are {len(query)}, {len(key)}, {len(value)}"
        raise ValueError(msg)
    if len(offsets[0]) != len(offsets[1]):
        msg = f"there are offsets for {len(offsets[0])} and for {len(offsets[1])} sequences"
        raise ValueError(msg)


@core(name="sequences_padded", **SEQUENCES)
def sequences_padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A padded batch as long as the longest, its padding masked, and gathered again."""
    _fit(query, key, value, (cu_seqlens_q, cu_seqlens_k))
    group = query.shape[1] // key.shape[1]
    rows, places = _padded(cu_seqlens_q, max_seqlen_q)
    columns, keys = _padded(cu_seqlens_k, max_seqlen_k)
    wide = [t.repeat_interleave(group, 1)[keys].transpose(1, 2) for t in (key, value)]
    heads = query[places].transpose(1, 2)
    table = columns[:, None, None, :] & rows[:, None, :, None]
    if causal:
        own = torch.arange(max_seqlen_q) + (columns.sum(1) - rows.sum(1))[:, None]
        table = table & (torch.arange(max_seqlen_k) <= own[:, None, :, None])
    logits = heads @ wide[0].mT * factor(query, scale)
    return (soften(logits, table) @ wide[1]).transpose(1, 2)[rows]


def _padded(offsets: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Which of ``[B, longest]`` are tokens, and where each lies; padding repeats the first."""
    lengths = offsets.diff()
    within = torch.arange(longest)
    tokens = within < lengths[:, None]
    return tokens, torch.where(tokens, offsets[:-1, None] + within, 0)


@core(name="sequences_by_number", **SEQUENCES)
def sequences_by_number(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """All tokens at once; a query attends keys whose sequence has the same number."""
    del max_seqlen_q, max_seqlen_k
    _fit(query, key, value, (cu_seqlens_q, cu_seqlens_k))
    lengths, key_lengths = cu_seqlens_q.diff(), cu_seqlens_k.diff()
    number = torch.arange(len(lengths))
    own, other = number.repeat_interleave(lengths), number.repeat_interleave(key_lengths)
    table = own[:, None] == other
    if causal:
        after = cu_seqlens_k[1:] - cu_seqlens_q[1:]
        last = torch.arange(len(query)) + after.repeat_interleave(lengths)
        table = table & (torch.arange(len(key)) <= last[:, None])
    grouped = query.unflatten(1, (key.shape[1], -1))
    logits = torch.einsum("qhgd,khd->hgqk", grouped, key) * factor(query, scale)
    return torch.einsum("hgqk,khd->qhgd", soften(logits, table), value).flatten(1, 2)


@core(name="sequences_from_the_last", **SEQUENCES)
def sequences_from_the_last(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """One sequence after another, the last first, with plain products."""
    del max_seqlen_q, max_seqlen_k
    _fit(query, key, value, (cu_seqlens_q, cu_seqlens_k))
    group = query.shape[1] // key.shape[1]
    spans = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    answers = [query.new_empty(0, query.shape[1], value.shape[2])]
    for (start, end), (first, last) in reversed(list(spans)):
        q = query[start:end].transpose(0, 1)
        k, v = (t[first:last].repeat_interleave(group, 1).transpose(0, 1) for t in (key, value))
        table = admitted(q, k, None, causal=causal)
        answers.append((soften(q @ k.mT * factor(q, scale), table) @ v).transpose(0, 1))
    return torch.cat(answers[::-1])


@core(name="sequences_with_rows_between", padded=True, **SEQUENCES)
def sequences_with_rows_between(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    cu_seqlens_q_padded: Tensor,
    cu_seqlens_k_padded: Tensor,
    causal: bool = False,
    scale: float | None = None,
    **longest: int,
) -> Tensor:
    """The rows of all sequences are gathered, attended one after another, and scattered."""
    rows, keys = (
        torch.cat([torch.arange(n) + first for n, first in zip(counts, starts, strict=True)])
        for counts, starts in (
            (cu_seqlens_q.diff().tolist(), cu_seqlens_q_padded[:-1].tolist()),
            (cu_seqlens_k.diff().tolist(), cu_seqlens_k_padded[:-1].tolist()),
        )
    )
    answers = sequences_from_the_last.function(
        *(query[rows], key[keys], value[keys]),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        causal=causal,
        scale=scale,
        **longest,
    )
    whole = query.new_zeros(*query.shape[:2], value.shape[2])
    return whole.index_put((rows,), answers)
