"""Mistakes in which query heads share which keys, values and masks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core


def group_size(call: Call) -> int:
    """How many query heads share a key/value head."""
    return call.query.shape[1] // call.key.shape[1]


@core("numerics.golden", "equivariance.heads")
class ValuesTiledKeysRepeated(EagerCore):
    """Shared keys are repeated for neighbouring query heads and shared values dealt in turns."""

    def attend(self, call: Call) -> Answer:
        tiled = call.value.repeat(1, group_size(call), 1, 1)
        return super().attend(call.replace(value=tiled))


@core("groups.order", "groups.golden", "numerics.golden", "equivariance.heads")
class GroupsOfTwoAssumed(EagerCore):
    """Two query heads are taken to share a key/value head, however many do."""

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        if heads.shape[1] == num_heads:
            return heads
        places = torch.arange(num_heads) // 2
        return heads[:, places.clamp(max=heads.shape[1] - 1)]


@core("numerics.golden", "equivariance.heads")
class HeadDividedByKeyHeads(EagerCore):
    """A query head is divided by the number of key/value heads, not by the size of a group."""

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        if heads.shape[1] == num_heads:
            return heads
        places = torch.arange(num_heads) // heads.shape[1]
        return heads[:, places.clamp(max=heads.shape[1] - 1)]


@core("mask.golden", "mask.no-leak", "mask.empty-row")
class MaskOfTheGroup(EagerCore):
    """All query heads that share a key/value head obey the mask of the first of them."""

    def attend(self, call: Call) -> Answer:
        size = group_size(call)
        if call.keep is not None and call.keep.shape[1] > 1:
            first = call.keep[:, ::size].repeat_interleave(size, dim=1)
            call = call.replace(keep=first)
        return super().attend(call)


@core("mask.causal-alignment", "mask.causal-combined")
class CausalLostInGroups(EagerCore):
    """The path for shared key/value heads does not look at the causal flag."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(causal=call.causal and group_size(call) == 1))


@core("groups.equals-repeated", "groups.golden", "numerics.golden", "numerics.scale")
class ScaledByGroup(EagerCore):
    """Query heads that share keys are stacked, and the scale uses the stacked size."""

    def scale(self, call: Call) -> float:
        given = super().scale(call)
        return given if call.scale is not None else given / group_size(call) ** 0.5


@core("groups.order", "groups.golden", "numerics.golden")
class GroupsStartOneLate(EagerCore):
    """Groups begin one query head late: the first of each reads what belongs to the one before."""

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        if heads.shape[1] == num_heads:
            return heads
        places = (torch.arange(num_heads) - 1).clamp(min=0) // (num_heads // heads.shape[1])
        return heads[:, places]


@core("groups.equals-repeated", "groups.order", "groups.golden", "numerics.golden")
class FirstHeadServesAll(EagerCore):
    """Where heads share keys and values, all of them read those of the first key/value head."""

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        return heads if heads.shape[1] == num_heads else heads[:, :1]


@core("groups.golden", "groups.equals-repeated", "mask.golden", "mask.no-leak")
class MaskLostInGroups(EagerCore):
    """The path for shared key/value heads does not look at masks of kept keys."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call if group_size(call) == 1 else call.replace(keep=None))


@core("groups.multi-query", "groups.golden", "numerics.golden", "numerics.scale")
class MultiQueryUnscaled(EagerCore):
    """The path for one key/value head, where the products are one, leaves out the scale."""

    def scale(self, call: Call) -> float:
        alone = call.key.shape[1] == 1 < call.query.shape[1]
        return 1.0 if alone and call.scale is None else super().scale(call)


@core("groups.multi-query", "groups.golden", "numerics.golden")
class MultiQueryReadsNextHead(EagerCore):
    """With one key/value head the queries of a head are those of the head before it."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        if call.key.shape[1] == 1 < call.query.shape[1]:
            call = call.replace(query=torch.cat([call.query[:, :1], call.query[:, :-1]], dim=1))
        return super().scores(call, key)
