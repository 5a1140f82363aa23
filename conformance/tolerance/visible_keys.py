"""Facts of the golden for bounds: attended keys, a sink as one more key, unmerged heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance._golden import golden

from . import model


def with_sink(attention: golden.Attention) -> golden.Attention:
    """Return an evaluation with one more key and value, of zeros, whose logit is the sink's.

    The sink is the last key, every query attends it, and the weights of a row sum to one again.
    ``given_key`` stays unchanged.
    """
    sinks = attention.sinks
    if sinks is None or attention.key.shape[-2] < attention.logits.shape[-1]:
        return attention
    logit = sinks[:, None, None].expand(*attention.logits.shape[:-1], 1)
    logits = torch.cat([attention.logits, logit], dim=-1)
    whole = torch.logsumexp(logits, dim=-1, keepdim=True)
    weight = (logit - whole).exp()
    bias = attention.bias
    if bias is not None:
        bias = pad(bias.expand(*bias.shape[:-1], attention.logits.shape[-1]), (0, 1))
    alibi = attention.alibi
    return replace(
        attention,
        key=more_keys(attention.key),
        value=more_keys(attention.value),
        bias=bias,
        alibi=None if alibi is None else pad(alibi, (0, 1)),
        sinks=None,
        allowed=pad(attention.allowed, (0, 1), value=True),
        empty=attention.empty & torch.isneginf(logit).squeeze(-1),
        scores=pad(attention.scores, (0, 1)),
        capped=torch.cat([attention.capped, logit], dim=-1),
        modified=torch.cat([attention.modified, logit], dim=-1),
        logits=logits,
        weights=torch.cat([attention.weights, weight.nan_to_num(nan=0.0)], dim=-1),
    )


def more_keys(tokens: Tensor) -> Tensor:
    """Append a token of zeros to tokens ``[B, H, Lk, D]``."""
    return pad(tokens, (0, 0, 0, 1))


def has_sink(attention: golden.Attention) -> bool:
    """Whether the last logit is a sink's, as :func:`with_sink` puts it."""
    return attention.logits.shape[-1] > attention.given_key.shape[-2]


def has_memory(attention: golden.Attention) -> bool:
    """Whether the last key is a memory that every query attends."""
    return "bias_k" in attention.learned


@dataclass(frozen=True, kw_only=True)
class LiveKeys:
    """The keys with a finite logit, and each row's largest logit.

    ``table`` is bool ``[B, H, Lq, Lk]`` and ``attended`` (by any row) bool ``[B, H, Lk, 1]``; both
    are None when every key is live. ``empty`` is bool ``[B, H, Lq, 1]``, None when every row has a
    key. ``largest`` is ``[B, H, Lq, 1]``, minus infinity in an empty row.
    """

    table: Tensor | None
    attended: Tensor | None
    empty: Tensor | None
    largest: Tensor
    key_length: int

    def only(self, pairs: Tensor) -> Tensor:
        """Zero pairs ``[B, H, Lq, Lk]`` that are not live, in place."""
        return pairs if self.table is None else pairs.masked_fill_(~self.table, 0.0)

    def only_attended(self, tokens: Tensor) -> Tensor:
        """Zero the tokens of unattended keys: ``[B, H, Lk, D]``."""
        return tokens if self.attended is None else tokens.masked_fill(~self.attended, 0.0)

    def mean(self, tokens: Tensor) -> Tensor:
        """The mean over attended keys, ``[B, H, 1, D]``."""
        if self.attended is None:
            return tokens.mean(dim=-2, keepdim=True)
        count = self.attended.sum(dim=-2, keepdim=True).clamp_min_(1)
        return self.only_attended(tokens).sum(dim=-2, keepdim=True).div_(count)

    def several(self) -> Tensor | bool:
        """The rows ``[B, H, Lq, 1]`` that attend several keys; True or False if all or none."""
        if self.table is None:
            return self.key_length > 1
        return self.table.sum(dim=-1, keepdim=True) > 1

    def spread(self, tokens: Tensor) -> Tensor:
        """Return the range of attended keys' tokens, ``[B, H, 1, D]``; 0 without such keys."""
        high, low = _range(tokens, self.attended)
        return (high - low).clamp_min_(0.0).unsqueeze(-2)

    def log_count(self) -> Tensor | float:
        """Return the logarithm of each row's live keys, ``[B, H, Lq, 1]``; 0 without any."""
        if self.table is None:
            return math.log(self.key_length)
        return self.table.sum(dim=-1, keepdim=True).clamp_min_(1).double().log_()


def live_keys(attention: golden.Attention, attended: Tensor | None = None) -> LiveKeys:
    """Read the live keys off the logits.

    ``attended`` (bool ``[B, H, Lk, 1]``) says which keys any row attends, if ``attention`` holds a
    part of the rows only.
    """
    logits = attention.logits
    table = logits > -math.inf
    some = not bool(table.all())
    alive = table.any(dim=-1, keepdim=True) if some else None
    return LiveKeys(
        table=table if some else None,
        attended=attended if attended is not None or not some else table.any(dim=-2).unsqueeze(-1),
        empty=None if alive is None or bool(alive.all()) else ~alive,
        largest=logits.amax(dim=-1, keepdim=True),
        key_length=logits.shape[-1],
    )


def extremes(tokens: Tensor, live: LiveKeys, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest and smallest token attended by each of N True ``rows``: ``[N, D]``.

    ``tokens`` is ``[B, H, Lk, D]``, ``rows`` bool ``[B, H, Lq]``. For many rows over many keys, the
    keys attended by any row of the head replace the row's: the range only widens.
    """
    batch, head, query = rows.nonzero(as_tuple=True)
    per_row = live.key_length * tokens.shape[-1]
    if live.table is None or batch.numel() * per_row > model.HULL_LIMIT:
        high, low = _range(tokens, live.attended)
        return high[batch, head], low[batch, head]
    step = max(1, model.HULL_CHUNK // max(1, per_row))
    pieces = [
        _range(tokens[b, h], live.table[b, h, q].unsqueeze(-1))
        for b, h, q in zip(batch.split(step), head.split(step), query.split(step), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _range(tokens: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return maximum and minimum over the live keys (last axis but one)."""
    if live is None:
        return tokens.amax(dim=-2), tokens.amin(dim=-2)
    high = tokens.masked_fill(~live, -math.inf).amax(dim=-2)
    low = tokens.masked_fill(~live, math.inf).amin(dim=-2)
    return high, low


def sum_groups(heads: Tensor, num_kv_heads: int, semantics: golden.Semantics) -> Tensor:
    """Sum the heads of each key/value head: ``[B, H, L, D]`` to ``[B, Hkv, L, D]``."""
    owner = owners(heads.shape[1], num_kv_heads, semantics)
    total = heads.new_zeros(heads.shape[0], num_kv_heads, *heads.shape[2:])
    return total.index_add_(1, owner, heads)


def owners(num_heads: int, num_kv_heads: int, semantics: golden.Semantics) -> Tensor:
    """Return the key/value head read by each query head, int64 ``[H]``."""
    indices = torch.arange(num_kv_heads).view(1, num_kv_heads, 1, 1)
    return golden.repeat_heads(indices, num_heads, semantics).flatten()


def unmerge_heads(merged: Tensor, shape: torch.Size, semantics: golden.Semantics) -> Tensor:
    """The inverse of ``golden.merge_heads`` for heads of ``shape`` ``[B, H, L, Dv]``."""
    return _invert(merged, shape, lambda heads: golden.merge_heads(heads, semantics))


def unsplit_heads(heads: Tensor, semantics: golden.Semantics) -> Tensor:
    """The inverse of ``golden.split_heads``: ``[B, H, L, D]`` to ``[B, L, H*D]``."""
    batch, num_heads, length, size = heads.shape
    shape = torch.Size((batch, length, num_heads * size))
    return _invert(heads, shape, lambda tokens: golden.split_heads(tokens, num_heads, semantics))


def _invert(moved: Tensor, shape: torch.Size, move: Callable[[Tensor], Tensor]) -> Tensor:
    source = move(torch.arange(shape.numel()).reshape(shape)).flatten()
    original = torch.empty_like(moved.flatten())
    original[source] = moved.flatten()
    return original.reshape(shape)


def head_rows(matrix: Tensor, num_heads: int, semantics: golden.Semantics) -> Tensor:
    """Return a projection's rows by head: ``[H*D, in]`` to ``[H, D, in]``."""
    return matrix[_channels(matrix.shape[0], num_heads, semantics)]


def from_head_rows(heads: Tensor, semantics: golden.Semantics) -> Tensor:
    """The inverse of :func:`head_rows`: ``[H, D, in]`` to ``[H*D, in]``."""
    num_heads, size, width = heads.shape
    matrix = heads.new_empty(num_heads * size, width)
    matrix[_channels(num_heads * size, num_heads, semantics)] = heads
    return matrix


def _channels(width: int, num_heads: int, semantics: golden.Semantics) -> Tensor:
    """Return the channels of a projection by head: int64 ``[H, D]``."""
    channels = torch.arange(width).view(1, 1, -1)
    return golden.split_heads(channels, num_heads, semantics)[0, :, 0]
