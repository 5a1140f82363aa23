"""Mistakes in rotary positions."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from ._kit import core
from ._prepared import Prepared

ROTARY: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "features": ["scale", "gqa"],
    "semantics": Semantics(rotary="halves"),
}
PARTIAL: Final[dict[str, Any]] = {
    **ROTARY,
    "semantics": Semantics(rotary="interleaved", rotary_fraction=0.5),
}
SCALED: Final[dict[str, Any]] = {
    **ROTARY,
    "semantics": Semantics(
        rotary="halves", rotary_scaling=("llama3", 8.0, 1.0, 4.0, 64), rotary_amplitude=1.25
    ),
}
TOP_LEFT: Final[dict[str, Any]] = {**ROTARY, "causal": "top-left"}


class Turned(Prepared):
    """Halves of channels turn together."""

    pairing = "halves"


@core("position.rotary", **ROTARY)
class NeighboursPaired(Turned):
    """Neighbouring channels turn together where halves are declared."""

    pairing = "interleaved"


@core("position.rotary", **{**ROTARY, "semantics": Semantics(rotary="interleaved")})
class HalvesPaired(Turned):
    """Halves of channels turn together where neighbours are declared."""


@core("position.rotary", **ROTARY)
class BaseOffByOne(Turned):
    """The base of the frequencies is 9,999."""

    base = 9999.0


@core("position.rotary", **ROTARY)
class BaseOfLongContexts(Turned):
    """The base is the 500,000 of a later model."""

    base = 500000.0


@core("position.rotary", **ROTARY)
class KeysTurnedBackwards(Turned):
    """Keys turn the other way: sums of positions count, not distances."""

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.turn(query, here), self.turn(key, -there)


@core("position.rotary", **ROTARY)
class ValuesTurnedToo(Turned):
    """Values are turned like keys."""

    def value(self, value: Tensor, there: Tensor) -> Tensor:
        return self.turn(value, there)


@core("position.rotary", **ROTARY)
class OnlyQueriesTurned(Turned):
    """Queries are turned by their positions, keys are not."""

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        del there
        return self.turn(query, here), key


@core("position.rotary", **ROTARY)
class KeysOnePlaceLater(Turned):
    """Keys are counted from one, queries from zero."""

    def places(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        here, there = super().places(query, key)
        return here, there + 1


@core("position.rotary", **ROTARY)
class QueriesFromTheFirstKey(Turned):
    """Queries are counted from zero, though the last one stands at the last key."""

    def places(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return torch.arange(query.shape[2]), torch.arange(key.shape[2])


@core("position.rotary", **TOP_LEFT)
class QueriesFromTheEnd(Turned):
    """Queries are counted from the end, though the first one stands at the first key."""

    def table(self, query: Tensor, key: Tensor, keep: Tensor | None, *, causal: bool) -> Tensor:
        admitted = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        admitted = admitted.tril() if causal else admitted
        return admitted if keep is None else admitted & keep


@core("position.rotary-partial", "position.rotary", **PARTIAL)
class AllChannelsTurned(Turned):
    """The fraction of the channels that turn is ignored."""

    pairing = "interleaved"


@core("position.rotary", **PARTIAL)
class FrequenciesOfTheWholeHead(Turned):
    """Half of the channels turn, by frequencies of the whole head."""

    pairing = "interleaved"
    fraction = 0.5

    def angles(self, place: Tensor, size: int) -> Tensor:
        return super().angles(place, 2 * size)[:, : size // 2]


@core("position.rotary", **PARTIAL)
class LastChannelsTurned(Turned):
    """The last channels turn where the first ones are declared."""

    pairing = "interleaved"
    fraction = 0.5

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        return super().turn(heads.flip(-1), place).flip(-1)


@core("position.rotary", **ROTARY)
class NothingTurned(Turned):
    """Positions are left out."""

    pairing = ""


@core("position.rotary", **ROTARY)
class TurnedTwice(Turned):
    """Heads are turned when they are cached and again when they are used."""

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        return super().turn(super().turn(heads, place), place)


@core("position.rotary", **ROTARY)
class RotaryExponentNotDoubled(Turned):
    """The exponent is i/R where it should be 2i/R."""

    def angles(self, place: Tensor, size: int) -> Tensor:
        frequencies = self.base ** -(torch.arange(size // 2).double() / max(size, 1))
        return place.double()[:, None] * frequencies


@core("position.rotary", **ROTARY)
class TablesInBfloat16(Turned):
    """Sines and cosines are kept in bfloat16."""

    def angles(self, place: Tensor, size: int) -> Tensor:
        return super().angles(place, size).bfloat16()


@core("position.rotary", **ROTARY)
class PlacesOfHeads(Turned):
    """The head is taken for the position: tables meet the wrong axis."""

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        del place
        turned = super().turn(heads.transpose(1, 2), torch.arange(heads.shape[1]))
        return turned.transpose(1, 2)


@core("position.rotary-shift", "position.rotary", **ROTARY)
class PlacesOverLength(Turned):
    """Positions are divided by the length of the sequence."""

    def angles(self, place: Tensor, size: int) -> Tensor:
        return super().angles(place, size) / (place.max().clamp(min=0) + 1)


class Scaled(Turned):
    """Frequencies of a longer context, as in Llama 3."""

    factor, low, high, original = 8.0, 1.0, 4.0, 64
    amplitude = 1.25

    def angles(self, place: Tensor, size: int) -> Tensor:
        own = self.base ** -(torch.arange(0, size, 2).double() / max(size, 1))
        turns = self.original * own / (2.0 * torch.pi)
        stays = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return place.double()[:, None] * (own / self.factor * (1.0 - stays) + own * stays)

    def turn(self, heads: Tensor, place: Tensor) -> Tensor:
        turning = torch.arange(heads.shape[-1]) < heads.shape[-1] // 2 * 2
        return super().turn(torch.where(turning, self.amplitude * heads, heads), place)


@core("position.scaling", "position.rotary", **SCALED)
class ScalingForgotten(Scaled):
    """Frequencies are those of the shorter context."""

    factor = 1.0


@core("position.scaling", "position.rotary", **SCALED)
class ScaledLinearly(Scaled):
    """Every frequency is divided, fast ones too."""

    low, high = 1000.0, 2000.0


@core("position.scaling", "position.rotary", **SCALED)
class AmplitudeForgotten(Scaled):
    """Cosines and sines are as long as one."""

    amplitude = 1.0


@core("position.scaling", "position.rotary", **SCALED)
class AmplitudeOfQueriesAlone(Scaled):
    """The amplitude is that of the scores, though it is squared there."""

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.turn(query, here), Turned.turn(self, key, there)
