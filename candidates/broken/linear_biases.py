"""Mistakes in attention with linear biases."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from ._kit import core
from ._prepared import Prepared

ALIBI: Final[dict[str, Any]] = {
    "masks": ["keep"],
    "features": ["scale"],
    "semantics": Semantics(alibi=True),
}


class Linear(Prepared):
    """Distances are taken off the logits."""

    linear = True


@core("bias.alibi", **ALIBI)
class OneSequenceOfSlopes(Linear):
    """Any number of heads gets the slopes of a power of two."""

    def slopes(self, heads: int) -> Tensor:
        return self.geometric(heads)


@core("bias.alibi", **ALIBI)
class FinerSlopesInOrder(Linear):
    """Slopes beyond the power of two are the next ones, not every other one."""

    def slopes(self, heads: int) -> Tensor:
        power = 1 << (heads.bit_length() - 1)
        return torch.cat([self.geometric(power), self.geometric(2 * power)])[:heads]


@core("bias.alibi", **ALIBI)
class SlopesReversed(Linear):
    """The last head has the steepest slope."""

    def slopes(self, heads: int) -> Tensor:
        return super().slopes(heads).flip(0)


@core("bias.alibi", **ALIBI)
class SlopesFromOne(Linear):
    """The slopes of the heads start from 1, one power too early."""

    def slopes(self, heads: int) -> Tensor:
        steeper: Tensor = super().slopes(heads) * 2.0 ** (8.0 / heads)
        return steeper


@core("bias.alibi", **ALIBI)
class FarKeysFavoured(Linear):
    """Distances are added to the logits."""

    def bias(self, heads: int, here: Tensor, there: Tensor) -> Tensor:
        return -super().bias(heads, here, there)


@core("bias.alibi", **ALIBI)
class LaterKeysFavoured(Linear):
    """The signed distance counts: a later key gains where it should lose."""

    def bias(self, heads: int, here: Tensor, there: Tensor) -> Tensor:
        return -self.slopes(heads)[:, None, None] * (here[:, None] - there).double()


@core("bias.alibi", **ALIBI)
class DistancesScaled(Linear):
    """The biases join before the scale."""

    def logits(
        self, query: Tensor, key: Tensor, factor: float, here: Tensor, there: Tensor
    ) -> Tensor:
        bias = self.bias(query.shape[1], here, there).to(query.dtype)
        return (query @ key.mT + bias) * factor


@core("bias.alibi", **ALIBI)
class DistancesFromTheFirstQuery(Linear):
    """Distances are counted as if the first query stood at the first key."""

    def places(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return torch.arange(query.shape[2]), torch.arange(key.shape[2])


@core("bias.alibi", **ALIBI)
class DistancesSquared(Linear):
    """The square of the distance counts."""

    def bias(self, heads: int, here: Tensor, there: Tensor) -> Tensor:
        bias = super().bias(heads, here, there)
        return bias * (here[:, None] - there).abs()


@core("bias.alibi", **ALIBI)
class OneSlopeForAll(Linear):
    """All heads have the slope of the first."""

    def slopes(self, heads: int) -> Tensor:
        return super().slopes(heads)[:1].expand(heads)


@core("bias.alibi", **ALIBI)
class NoLinearBiases(Linear):
    """The biases are left out."""

    linear = False
