"""Rotary positions and linear biases: tables read at wrong places, kept too long, cut short."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance

from ...eager import Answer, Call
from .._kit import core
from .._prepared import Prepared
from ._steps import Caching, Joined

HALVES: dict[str, Any] = {
    "masks": ["keep"],
    "features": ["scale", "gqa"],
    "semantics": conformance.Semantics(rotary="halves"),
}


class Turning(Prepared):
    """Rotary positions, the halves of a head as pairs."""

    pairing = "halves"


@core("position.rotary", "mask.golden", **{**HALVES, "features": ["scale", "gqa", "kv_cache"]})
class NewKeysNotTurned(Caching):
    """New keys are turned on their way into the cache; the call itself attends them unturned."""

    link = "https://github.com/kvcache-ai/sglang/pull/31"
    steps = Turning()

    def attend(self, call: Call) -> Answer:
        joined = self.join_cache(call)
        length = joined.key_length
        here = torch.arange(length - joined.query_length, length)
        query = self.steps.turn(joined.query, here)
        key = self.steps.turn(joined.key, torch.arange(length))
        if joined.past:
            key = torch.cat([key[:, :, : joined.past], joined.key[:, :, joined.past :]], dim=2)
        return super().attend(Joined(**{**vars(joined), "query": query, "key": key}))


@core("position.rotary", "mask.golden", **HALVES)
class SinesReadFromThePadding(Turning):
    """Sines follow the cosines in a row, but are looked for behind a power of two of channels."""

    link = "https://github.com/vllm-project/vllm-ascend/issues/12723"

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        half = heads.shape[-1] // 2
        angles = self.angles(place, half * 2)
        middle = (1 << max(half * 2 - 1, 0).bit_length()) // 2
        row = torch.cat([angles.cos(), angles.sin(), torch.zeros(len(place), middle)], dim=-1)
        cosine, sine = (row[:, at : at + half].to(heads.dtype) for at in (0, middle))
        one, two, rest = heads.split([half, half, heads.shape[-1] - 2 * half], dim=-1)
        return torch.cat((one * cosine - two * sine, one * sine + two * cosine, rest), dim=-1)


@core(
    "position.rotary",
    "mask.golden",
    **{**HALVES, "semantics": conformance.Semantics(rotary="halves", rotary_fraction=0.5)},
)
class EveryChannelTurned(Turning):
    """How many channels turn is not handed on to the fused kernel: all of them do."""

    link = "https://github.com/vllm-project/vllm/pull/43676"


@core("position.rotary", "mask.golden", **HALVES)
class AnglesKeptByLength(Turning):
    """Angles are kept from call to call by the number of tokens, whatever the offset was."""

    link = "https://github.com/lucidrains/rotary-embedding-torch/issues/11"

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], Tensor] = {}

    def angles(self, place: Tensor, size: int) -> Tensor:
        return self.kept.setdefault((len(place), size), super().angles(place, size))


@core(
    "bias.alibi",
    "mask.golden",
    masks=["keep"],
    features=["scale"],
    semantics=conformance.Semantics(alibi=True),
)
class SlopesRestartInEachHalf(Prepared):
    """Each of two shards numbers its heads from zero, so that both have the same slopes."""

    link = "https://github.com/flashinfer-ai/flashinfer/issues/1606"
    linear = True

    def slopes(self, heads: int) -> Tensor:
        if heads % 2:
            return super().slopes(heads)
        return super().slopes(heads // 2).repeat(2)
