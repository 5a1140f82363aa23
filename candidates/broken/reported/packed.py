"""Reported mistakes where sequences lie one after another in one tensor."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from ...eager import EagerCore
from .._kit import core

VARLEN: Final[dict[str, Any]] = {
    "layout": "varlen",
    "masks": [],
    "features": ["scale", "gqa"],
}


class Varlen:
    """Attention within each of several sequences; right as it stands."""

    def __init__(self) -> None:
        self.attend = EagerCore()

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
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Attend ``query [total_q, H, D]`` to ``key [total_k, Hkv, D]`` and ``value``."""
        del max_seqlen_q, max_seqlen_k
        if key.shape[0] != value.shape[0] or int(cu_seqlens_k[-1]) != key.shape[0]:
            msg = f"there are {key.shape[0]} keys and {value.shape[0]} values"
            raise ValueError(msg)
        parts = [query.new_zeros(0, query.shape[1], value.shape[2])]
        offsets = self.offsets(cu_seqlens_q.tolist()), self.offsets(cu_seqlens_k.tolist())
        for (first, last), (start, end) in zip(*map(pairwise, offsets), strict=True):
            heads = (query[first:last], key[start:end], value[start:end])
            one, two, three = (part.transpose(0, 1)[None] for part in heads)
            flag = self.flag(causal=causal)
            answer = self.attend(one, two, three, causal=flag, scale=scale)
            output = answer if isinstance(answer, Tensor) else answer[0]
            parts.append(output[0].transpose(0, 1))
        return torch.cat(parts)

    def offsets(self, given: list[int]) -> list[int]:
        """Where each sequence begins, and the end."""
        return given

    def flag(self, *, causal: bool) -> bool:
        """Whether keys after a query are hidden."""
        return causal


@core("equivariance.tokens", "equivariance.keys", **VARLEN)
class PackedFallbackIsCausal(Varlen):
    """The path for packed sequences builds causal blocks, whatever was asked for."""

    link = "https://github.com/nishide-dev/unturtle/pull/44"

    def flag(self, *, causal: bool) -> bool:
        del causal
        return True


@core("mask.causal-alignment", **VARLEN)
class OnlyFirstBoundarySplits(Varlen):
    """The first boundary is used, and all that follow are ignored."""

    link = "https://github.com/Tencent-Hunyuan/HunyuanVideo/pull/310"

    def offsets(self, given: list[int]) -> list[int]:
        return [*given[:2], given[-1]]


@core("mask.causal-alignment", **VARLEN)
class BoundariesUnused(Varlen):
    """The offsets are taken and not used: all tokens attend each other."""

    link = "https://github.com/Tencent-Hunyuan/HunyuanVideo/pull/310"

    def offsets(self, given: list[int]) -> list[int]:
        return [given[0], given[-1]]
