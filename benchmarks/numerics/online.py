"""The online softmax of FlashAttention and the merge of split keys, in their variations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .arithmetic import blocks, divided, finish, largest, logits, stored, transposed, wide
from .inputs import Heads

LOG2_E = math.log2(math.e)


@dataclass(kw_only=True)
class _State:
    """What is carried from block to block: row maximum, sum of weights, weighted values."""

    top: Tensor
    total: Tensor
    sums: Tensor


@dataclass(frozen=True, kw_only=True)
class Online:
    """Blocks of keys, rescaled whenever a row's maximum grows (Dao et al., arXiv:2205.14135).

    block, backward
        How many keys a block has, and whether the last one comes first.
    base_two
        Powers of two of logits times log2(e), which is ``log2_e`` rounded.
    query_scaled
        The scale goes to the query, stored in the working dtype.
    stored_weights
        The weights are stored in the working dtype before they meet the values.
    lazy
        The maximum is replaced only when it grows by more than this many powers of two.
    rescale_total, rescale_sums, accumulator
        Mistakes: not rescaling, an accumulator of another dtype.
    """

    block: int
    backward: bool = False
    base_two: bool = True
    query_scaled: bool = False
    stored_weights: bool = True
    lazy: float = 0.0
    log2_e: float = LOG2_E
    rescale_total: bool = True
    rescale_sums: bool = True
    accumulator: torch.dtype | None = field(default=None)

    def __call__(self, heads: Heads) -> Tensor:
        """The answer ``[B, H, Lq, Dv]`` in the working dtype."""
        heads = heads.repeated()
        rows = heads.query.shape[:3]
        dtype = wide(heads.query[:0]).dtype
        state = _State(
            top=torch.full((*rows, 1), -torch.inf, dtype=dtype),
            total=torch.zeros(*rows, 1, dtype=dtype),
            sums=torch.zeros(*rows, heads.value.shape[-1], dtype=dtype),
        )
        order = list(blocks(heads.key.shape[2], self.block))
        for keys in reversed(order) if self.backward else order:
            self._add(state, heads, keys)
        return divided(state.sums, state.total).to(heads.dtype)

    def _add(self, state: _State, heads: Heads, keys: slice) -> None:
        scores = self._logits(heads, keys)
        top = torch.maximum(state.top, scores.amax(dim=-1, keepdim=True))
        if self.lazy:
            near = (top - state.top) * LOG2_E <= self.lazy
            top = torch.where(near, state.top, top)
        shift = torch.where(torch.isneginf(top), 0.0, top)
        weights, kept = self._power(scores, shift), self._power(state.top, shift)
        state.total = state.total * (kept if self.rescale_total else 1.0)
        state.total += weights.sum(dim=-1, keepdim=True)
        weights = stored(weights, heads.dtype) if self.stored_weights else weights
        state.sums = state.sums * (kept if self.rescale_sums else 1.0)
        state.sums += weights @ wide(heads.value[..., keys, :])
        if self.accumulator is not None:
            state.sums = stored(state.sums, self.accumulator)
        state.top = top

    def _logits(self, heads: Heads, keys: slice) -> Tensor:
        if not self.query_scaled:
            return logits(heads, keys)
        query, key = wide(heads.query * heads.scale), wide(heads.key[..., keys, :])
        return finish(query @ transposed(key), heads, keys)

    def _power(self, scores: Tensor, shift: Tensor) -> Tensor:
        if self.base_two:
            return torch.exp2(scores * self.log2_e - shift * self.log2_e)
        return torch.exp(scores - shift)


def split_and_merged(parts: int, *, divide: bool = True) -> Callable[[Heads], Tensor]:
    """Parts of the keys on their own, merged by their log-sum-exp (Flash-Decoding).

    Without ``divide`` the merging weights are exp(lse of a part - lse of all), not divided by their
    sum.
    """

    def core(heads: Heads) -> Tensor:
        heads = heads.repeated()
        length = heads.key.shape[2]
        computed = [_part(heads, keys) for keys in blocks(length, math.ceil(length / parts))]
        answers = torch.stack([answer for answer, _ in computed])
        sums = torch.stack([log_sum for _, log_sum in computed])
        if divide:
            weights = torch.softmax(sums, dim=0)
        else:
            weights = torch.exp(sums - torch.logsumexp(sums, dim=0))
        return (answers * weights).sum(dim=0).to(heads.dtype)

    return core


def _part(heads: Heads, keys: slice) -> tuple[Tensor, Tensor]:
    """Answer and log-sum-exp of some of the keys."""
    scores = logits(heads, keys)
    top = largest(scores)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    sums = stored(weights, heads.dtype) @ wide(heads.value[..., keys, :])
    return divided(sums, total), top + torch.log(total)
