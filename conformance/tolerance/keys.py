"""The keys that a query can see: the ones that count for means, maxima and hulls."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance._golden import golden

from . import model


@dataclass(frozen=True, kw_only=True)
class LiveKeys:
    """Which keys have a finite logit, and each row's largest logit.

    ``table`` is bool ``[B, H, Lq, Lk]`` and ``seen`` (by any row) bool ``[B, H, Lk, 1]``; both are
    None when every key is live. ``empty`` is bool ``[B, H, Lq, 1]``, None when every row has a key.
    ``largest`` is ``[B, H, Lq, 1]``, minus infinity in an empty row.
    """

    table: Tensor | None
    seen: Tensor | None
    empty: Tensor | None
    largest: Tensor
    key_length: int

    def only(self, pairs: Tensor) -> Tensor:
        """Zero what belongs to a pair that is not live, in place: ``[B, H, Lq, Lk]``."""
        return pairs if self.table is None else pairs.masked_fill_(~self.table, 0.0)

    def only_seen(self, tokens: Tensor) -> Tensor:
        """Zero what belongs to a key that no query sees: ``[B, H, Lk, D]``."""
        return tokens if self.seen is None else tokens.masked_fill(~self.seen, 0.0)

    def mean(self, tokens: Tensor) -> Tensor:
        """The mean over seen keys, ``[B, H, 1, D]``, of tokens that are zero elsewhere."""
        if self.seen is None:
            return tokens.mean(dim=-2, keepdim=True)
        count = self.seen.sum(dim=-2, keepdim=True).clamp_min_(1)
        return tokens.sum(dim=-2, keepdim=True).div_(count)

    def several(self) -> Tensor | bool:
        """The rows ``[B, H, Lq, 1]`` that see more than one key; True or False if all or none."""
        if self.table is None:
            return self.key_length > 1
        return self.table.sum(dim=-1, keepdim=True) > 1

    def spread(self, tokens: Tensor) -> Tensor:
        """How far apart tokens of seen keys lie, ``[B, H, 1, D]``; 0 where no key is seen."""
        high, low = _range(tokens, self.seen)
        return (high - low).clamp_min_(0.0).unsqueeze(-2)

    def log_count(self) -> Tensor | float:
        """The logarithm of each row's count of live keys, ``[B, H, Lq, 1]``; 0 if there is none."""
        if self.table is None:
            return math.log(self.key_length)
        return self.table.sum(dim=-1, keepdim=True).clamp_min_(1).double().log_()


def live_keys(attention: golden.Attention, seen: Tensor | None = None) -> LiveKeys:
    """Read the live keys off the logits.

    ``seen`` (bool ``[B, H, Lk, 1]``) says which keys are seen by any row where ``attention`` holds
    some of the rows only.
    """
    logits = attention.logits
    table = logits > -math.inf
    some = not bool(table.all())
    alive = table.any(dim=-1, keepdim=True) if some else None
    return LiveKeys(
        table=table if some else None,
        seen=seen if seen is not None or not some else table.any(dim=-2).unsqueeze(-1),
        empty=None if alive is None or bool(alive.all()) else ~alive,
        largest=logits.amax(dim=-1, keepdim=True),
        key_length=logits.shape[-1],
    )


def extremes(tokens: Tensor, live: LiveKeys, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The largest and smallest token that each of the N True ``rows`` sees, ``[N, D]`` both.

    ``tokens`` is ``[B, H, Lk, D]``, ``rows`` bool ``[B, H, Lq]``. For many rows over many keys, the
    keys that any row of the head sees stand for those of the row: the range only widens.
    """
    batch, head, query = rows.nonzero(as_tuple=True)
    per_row = live.key_length * tokens.shape[-1]
    if live.table is None or batch.numel() * per_row > model.HULL_LIMIT:
        high, low = _range(tokens, live.seen)
        return high[batch, head], low[batch, head]
    step = max(1, model.HULL_CHUNK // max(1, per_row))
    pieces = [
        _range(tokens[b, h], live.table[b, h, q].unsqueeze(-1))
        for b, h, q in zip(batch.split(step), head.split(step), query.split(step), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _range(tokens: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maximum and minimum over the keys (last axis but one) that are live."""
    if live is None:
        return tokens.amax(dim=-2), tokens.amin(dim=-2)
    high = tokens.masked_fill(~live, -math.inf).amax(dim=-2)
    low = tokens.masked_fill(~live, math.inf).amin(dim=-2)
    return high, low
