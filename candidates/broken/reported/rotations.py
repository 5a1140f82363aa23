"""Reported mistakes in rotary positions."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from .._kit import core
from .._prepared import Prepared

TURNED: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "features": ["scale", "gqa"],
    "semantics": Semantics(rotary="halves"),
}


class Halves(Prepared):
    """Rotary positions in halves; right as it stands."""

    pairing = "halves"


@core("numerics.golden", "mask.golden", **TURNED)
class TurnedByHead(Halves):
    """The angles go along the axis of the heads: a head is turned by its number."""

    link = "https://github.com/mlfoundations/open_lm/issues/4"

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        del place
        numbers = torch.arange(heads.shape[1])
        return super().turn(heads.transpose(1, 2), numbers).transpose(1, 2)


@core("numerics.golden", "mask.golden", **{**TURNED, "features": ["scale"]})
class QueryAndKeyHalvesCrossed(Halves):
    """The second half of the query is turned out of the key, the first of the key out of the query.

    Where they are as many.
    """

    link = "https://github.com/hpcaitech/ColossalAI/pull/6429"

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key = super().prepare(query, key, here, there)
        if query.shape != key.shape:
            return query, key
        half = query.shape[-1] // 2
        return (
            torch.cat([query[..., :half], key[..., half:]], dim=-1),
            torch.cat([query[..., :half], key[..., half:]], dim=-1),
        )


@core("numerics.golden", "mask.golden", **TURNED)
class HalvesWithInterleavedAngles(Halves):
    """Channels are paired as halves, but each angle is that of two neighbours."""

    link = "https://github.com/raiyanyahya/how-to-train-your-gpt/issues/6"

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        size = heads.shape[-1] // 2 * 2
        angles = self.angles(place, size).repeat_interleave(2, dim=-1)
        turning, rest = heads[..., :size], heads[..., size:]
        one, two = turning.chunk(2, dim=-1)
        across = torch.cat((-two, one), dim=-1)
        turned = turning * angles.cos().to(heads.dtype) + across * angles.sin().to(heads.dtype)
        return torch.cat((turned, rest), dim=-1)


@core(
    "numerics.golden",
    "mask.golden",
    **{**TURNED, "semantics": Semantics(rotary="halves", rotary_fraction=0.5)},
)
class PartialTurnOverWholeHead(Halves):
    """Where a part of the channels is turned, pairs and angles are those of the whole head."""

    link = "https://github.com/pie-project/pie/pull/603"

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        size = heads.shape[-1] // 2 * 2
        part = int(heads.shape[-1] * 0.5) // 2 * 2
        angles = self.angles(place, size)
        angles[:, part // 2 :] = 0.0
        cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        turning, rest = heads[..., :size], heads[..., size:]
        one, two = turning.chunk(2, dim=-1)
        turned = (one * cosine - two * sine, one * sine + two * cosine)
        return torch.cat((*turned, rest), dim=-1)


@core("numerics.any-length", **{**TURNED, "dtypes": ["bfloat16"]}, scores="fused")
class PlacesInHalfPrecision(Halves):
    """Places are numbers in bfloat16, which past 256 are not all whole; all else is in float32."""

    link = "https://github.com/nkalyanv99/UNI-D2/pull/6"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
        answer = super().__call__(query.float(), key.float(), value.float(), **use)
        return answer.to(query.dtype)

    def angles(self, place: Tensor, size: int) -> Tensor:
        return super().angles(place.bfloat16(), size)


@core("position.rotary", **{**TURNED, "dtypes": ["bfloat16"]}, scores="fused")
class FrequenciesInBfloat16(Halves):
    """The frequencies are cast to bfloat16 before places multiply them; all else is in float32."""

    link = "https://github.com/Modalities/modalities/pull/462"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **use: Any) -> Tensor:
        answer = super().__call__(query.float(), key.float(), value.float(), **use)
        return answer.to(query.dtype)

    def angles(self, place: Tensor, size: int) -> Tensor:
        one = super().angles(torch.ones(1), size)
        return place.double()[:, None] * one.bfloat16().double()
