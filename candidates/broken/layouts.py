"""Mistakes of kernels that take their heads in another layout: packed, [B, S, H, D], varlen."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from ..eager import EagerCore
from ._kit import InexactCore, core

PACKED: Final[dict[str, Any]] = {
    "layout": "packed-qkv",
    "masks": ["keep"],
    "features": ["scale"],
}
VARLEN: Final[dict[str, Any]] = {
    "layout": "varlen",
    "masks": [],
    "features": ["scale", "gqa"],
}
PADDED: Final[dict[str, Any]] = {**VARLEN, "padded": True}


class PackedCore:
    """Cuts ``[B, S, 3, H, D]`` apart and attends; a mistake replaces a step."""

    attention = EagerCore()

    def __call__(self, qkv: Tensor, **options: Any) -> Tensor:
        """Attend within one tensor; returns ``[B, S, H, D]``."""
        query, key, value = self.cut(qkv)
        heads = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return self.attention(*heads, **options).transpose(1, 2)  # type: ignore[union-attr]  # no weights are asked for

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value ``[B, S, H, D]``."""
        query, key, value = qkv.unbind(2)
        return query, key, value


class VarlenCore:
    """Attends each sequence apart; a mistake replaces a step."""

    attention = EagerCore()

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **options: Any,
    ) -> Tensor:
        """Attend ``[total_q, H, D]`` to ``[total_k, Hkv, D]``; returns ``[total_q, H, Dv]``."""
        if key.shape[0] != value.shape[0]:
            msg = f"there are {key.shape[0]} keys and {value.shape[0]} values"
            raise ValueError(msg)
        longest = max_seqlen_q, max_seqlen_k
        output = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
        spans = zip(self.spans(cu_seqlens_q), self.key_spans(cu_seqlens_k), strict=True)
        for rows, keys in spans:
            one = query[rows], key[keys], value[keys]
            output[rows] = self.one(*one, longest=longest, **options)
        return output

    def spans(self, offsets: Tensor) -> list[slice]:
        """The queries of each sequence."""
        return [slice(first, last) for first, last in pairwise(offsets.tolist())]

    def key_spans(self, offsets: Tensor) -> list[slice]:
        """The keys of each sequence."""
        return [slice(first, last) for first, last in pairwise(offsets.tolist())]

    def one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        longest: tuple[int, int],
        **options: Any,
    ) -> Tensor:
        """One sequence, ``[L, H, D]`` in and out."""
        del longest
        heads = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
        return self.attention(*heads, **options)[0].transpose(0, 1)


@core("numerics.golden", **PACKED)
class PackedValueBeforeKey(PackedCore):
    """The packed tensor is read as query, value, key."""

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, value, key = qkv.unbind(2)
        return query, key, value


@core("numerics.golden", **PACKED)
class PackedKeyFirst(PackedCore):
    """The packed tensor is read as key, query, value."""

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, query, value = qkv.unbind(2)
        return query, key, value


@core("numerics.golden", **PACKED)
class PackedByHead(PackedCore):
    """The packed tensor is read as [B, S, H, 3, D], each head with its own three."""

    def cut(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _, heads, size = qkv.shape
        query, key, value = qkv.reshape(batch, length, heads, 3, size).unbind(3)
        return query, key, value


@core("numerics.golden", layout="BSHD", masks=["keep"], features=["scale"])
class HeadsTakenForTokens:
    """The heads of a token see each other: [B, S, H, D] is attended as if it were [B, H, S, D]."""

    attention = EagerCore()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Attend along the wrong axis, which fits where the lengths of query and key are equal."""
        if query.shape[1] != key.shape[1]:
            key, value = (tensor.mean(dim=1, keepdim=True) for tensor in (key, value))
            key, value = (tensor.expand(-1, query.shape[1], -1, -1) for tensor in (key, value))
        options.pop("keep", None)
        return self.attention(query, key, value, **options)  # type: ignore[return-value]  # no weights are asked for


@core("varlen.golden", **VARLEN)
class OffsetsOffByOne(VarlenCore):
    """Every sequence but the first leaves out its first key, where it has another."""

    def key_spans(self, offsets: Tensor) -> list[slice]:
        plain = super().key_spans(offsets)
        late = [slice(min(span.start + 1, span.stop - 1), span.stop) for span in plain[1:]]
        return plain[:1] + [
            new if new.start >= 0 else old for new, old in zip(late, plain[1:], strict=True)
        ]


@core("varlen.independent", **VARLEN)
class NeighbourAttended(VarlenCore):
    """Every sequence but the first sees the last key of the one before it."""

    def key_spans(self, offsets: Tensor) -> list[slice]:
        return [slice(max(span.start - 1, 0), span.stop) for span in super().key_spans(offsets)]


@core("varlen.independent", **VARLEN)
class AllSequencesAttended(VarlenCore):
    """The keys of all sequences are attended, as if there were one."""

    def key_spans(self, offsets: Tensor) -> list[slice]:
        return [slice(0, int(offsets[-1])) for _ in super().key_spans(offsets)]


@core("varlen.golden", **VARLEN)
class SequencesOfEqualLength(VarlenCore):
    """Sequences are cut at multiples of the longest, whatever the offsets say."""

    def spans(self, offsets: Tensor) -> list[slice]:
        return _equal(offsets)

    def key_spans(self, offsets: Tensor) -> list[slice]:
        return _equal(offsets)


def _equal(offsets: Tensor) -> list[slice]:
    """Equal parts of what there is."""
    count, total = len(offsets) - 1, int(offsets[-1])
    ends = [total * number // count for number in range(count + 1)]
    return [slice(first, last) for first, last in pairwise(ends)]


@core("varlen.causal", **VARLEN)
class CausalByLongest(VarlenCore):
    """The causal diagonal of every sequence is where that of the longest one is."""

    def one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        longest: tuple[int, int],
        **options: Any,
    ) -> Tensor:
        if options.pop("causal", False):
            table = torch.ones(len(query), len(key), dtype=torch.bool)
            options["keep"] = table.tril(longest[1] - longest[0])[None, None]
        return super().one(query, key, value, longest=longest, **options)


@core("varlen.empty-sequence", **VARLEN)
class EmptySequencesShiftOthers(VarlenCore):
    """Sequences without tokens are dropped from the keys, and the next ones move up."""

    def key_spans(self, offsets: Tensor) -> list[slice]:
        plain = super().key_spans(offsets)
        some = [span for span in plain if span.start < span.stop]
        return some + [slice(0, 0)] * (len(plain) - len(some))


@core("varlen.no-queries", **VARLEN)
class QuerylessSequencesShiftOthers(VarlenCore):
    """Sequences without queries are dropped, and the next ones attend their keys."""

    def spans(self, offsets: Tensor) -> list[slice]:
        plain = super().spans(offsets)
        some = [span for span in plain if span.start < span.stop]
        return some + [slice(0, 0)] * (len(plain) - len(some))


@core("varlen.golden", **VARLEN)
class SingleQueryBroadcast(VarlenCore):
    """Where every sequence has one query, all of them attend the keys of the first sequence."""

    def one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        longest: tuple[int, int],
        **options: Any,
    ) -> Tensor:
        if longest[0] == 1:
            self.first = getattr(self, "first", (key, value))
            key, value = self.first
        return super().one(query, key, value, longest=longest, **options)

    def __call__(self, *tensors: Tensor, **options: Any) -> Tensor:
        self.__dict__.pop("first", None)
        return super().__call__(*tensors, **options)


@core("varlen.no-keys", **VARLEN)
class RowsWithoutKeysUnwritten(VarlenCore):
    """A block that has no keys returns at once: its rows hold what the buffer held."""

    def one(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        longest: tuple[int, int],
        **options: Any,
    ) -> Tensor:
        if not len(key):
            return value.new_full((len(query), query.shape[1], value.shape[2]), 7.0)
        return super().one(query, key, value, longest=longest, **options)


class _GradientsUnwritten(VarlenCore):
    """The backward pass leaves gradients of some sequences as its buffers held them."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        **options: Any,
    ) -> Tensor:
        counts = cu_seqlens_q.diff(), cu_seqlens_k.diff()
        if torch.is_grad_enabled():
            query, key = self.unwritten(query, key, *counts)
        return super().__call__(
            query, key, value, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, **options
        )

    def unwritten(
        self, query: Tensor, key: Tensor, queries: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Query and key that get other gradients."""
        raise NotImplementedError


def _left(tensor: Tensor, tokens: Tensor, junk: float) -> Tensor:
    """The same numbers; the gradients of some tokens are junk."""
    if not tensor.requires_grad:
        return tensor
    same = tensor.clone()
    same.register_hook(lambda gradient: gradient.masked_fill(tokens[:, None, None], junk))
    return same


@core("varlen.no-queries-gradients", **VARLEN)
class KeysWithoutQueriesKeepOldGradients(_GradientsUnwritten):
    """No block writes the gradients of keys that no query attends: they hold what was there."""

    def unwritten(
        self, query: Tensor, key: Tensor, queries: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        return query, _left(key, (queries == 0).repeat_interleave(keys), 3.0)


@core("varlen.no-keys-gradients", **VARLEN)
class QueriesWithoutKeysGetNaN(_GradientsUnwritten):
    """Queries without keys get a gradient that is divided by a sum of nothing: NaN."""

    def unwritten(
        self, query: Tensor, key: Tensor, queries: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        return _left(query, (keys == 0).repeat_interleave(queries), float("nan")), key


@core("varlen.no-keys-neighbours", **VARLEN)
class GradientsEndWithSequenceWithoutKeys(_GradientsUnwritten):
    """The backward pass returns at a sequence without keys: those behind it get no gradient."""

    def unwritten(
        self, query: Tensor, key: Tensor, queries: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        behind = (keys == 0).cumsum(0) > 0
        query = _left(query, behind.repeat_interleave(queries), 0.0)
        return query, _left(key, behind.repeat_interleave(keys), 0.0)


class PaddedCore(VarlenCore):
    """Sequences with rows between them that belong to none; a mistake replaces a step."""

    def __call__(  # type: ignore[override]  # with more offsets
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        cu_seqlens_q_padded: Tensor,
        cu_seqlens_k_padded: Tensor,
        **options: Any,
    ) -> Tensor:
        """Attend ``[rows_q, H, D]`` to ``[rows_k, Hkv, D]``; returns ``[rows_q, H, Dv]``."""
        longest = max_seqlen_q, max_seqlen_k
        output = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
        rows = self.padded_spans(cu_seqlens_q, cu_seqlens_q_padded)
        keys = self.padded_key_spans(cu_seqlens_k, cu_seqlens_k_padded)
        for own, seen, written in zip(rows, keys, self.written(rows), strict=True):
            one = query[own], key[seen], value[seen]
            output[written] = self.one(*one, longest=longest, **options)
        return output

    def padded_spans(self, offsets: Tensor, padded: Tensor) -> list[slice]:
        """The rows of each sequence, from where it begins, as many as it has tokens."""
        counts = offsets.diff().tolist()
        starts = padded[:-1].tolist()
        return [slice(start, start + n) for start, n in zip(starts, counts, strict=True)]

    def padded_key_spans(self, offsets: Tensor, padded: Tensor) -> list[slice]:
        """The keys of each sequence."""
        return self.padded_spans(offsets, padded)

    def written(self, rows: list[slice]) -> list[slice]:
        """Where the answer of each sequence is written."""
        return rows


@core("varlen.golden", **PADDED)
class PaddingIgnored(PaddedCore):
    """Sequences are cut where they would begin if no row lay between them."""

    def padded_spans(self, offsets: Tensor, padded: Tensor) -> list[slice]:
        del padded
        return self.spans(offsets)


@core("varlen.golden", **PADDED)
class PaddingAttended(PaddedCore):
    """The keys of a sequence reach to the row where the next one begins."""

    attention = InexactCore()

    def padded_key_spans(self, offsets: Tensor, padded: Tensor) -> list[slice]:
        del offsets
        return self.key_spans(padded)


@core("varlen.golden", **PADDED)
class AnswersMovedUp(PaddedCore):
    """The answers of all sequences are written one after another, without the rows between."""

    def written(self, rows: list[slice]) -> list[slice]:
        ends = [0]
        for own in rows:
            ends.append(ends[-1] + own.stop - own.start)
        return [slice(first, last) for first, last in pairwise(ends)]
