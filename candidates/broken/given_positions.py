"""Mistakes with positions that the caller gives."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..given_positions import (
    HALVES,
    IN_TRANSFORMERS,
    LINEAR,
    NEIGHBOURS,
    PROMISES,
    NeighboursPlaced,
    PlacedCore,
    PlacedLayer,
)
from ._kit import core, layer

PLACED: Final[dict[str, Any]] = {**PROMISES, "semantics": HALVES}
APART: Final[dict[str, Any]] = {**PROMISES, "semantics": LINEAR}
SEEN: Final[dict[str, Any]] = {**PROMISES, "causal_by": "positions"}


@core("position.given", "position.rotary", **PLACED)
class PlacesInMemory(PlacedCore):
    """Queries and keys stand at their places in memory, whatever positions the call gives."""

    def of_queries(self, queries: Tensor, keys: Tensor) -> Tensor:
        length, count = keys.shape[1], queries.shape[1]
        return torch.arange(length - count, length).expand(len(queries), -1)

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries, past
        return torch.arange(keys.shape[1]).expand(len(keys), -1)


@core("position.given", "position.rotary", **PLACED)
class QueriesByPlace(PlacedCore):
    """Keys stand where the call says, queries at the last places in memory."""

    def of_queries(self, queries: Tensor, keys: Tensor) -> Tensor:
        length, count = keys.shape[1], queries.shape[1]
        return torch.arange(length - count, length).expand(len(queries), -1)


@core("position.given", "position.rotary", **{**PROMISES, "semantics": NEIGHBOURS})
class PositionsOfTheFirstItem(NeighboursPlaced):
    """All items stand where the first does."""

    def of_queries(self, queries: Tensor, keys: Tensor) -> Tensor:
        del keys
        return queries[:1]

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries, past
        return keys[:1]

    def distances(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super().distances(queries, keys)


@core("position.given", "position.rotary", **PLACED)
class KeysWhereQueriesStand(PlacedCore):
    """The last keys stand where the queries do: their own positions are not read."""

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del past
        count = min(keys.shape[1], queries.shape[1])
        if not count:
            return keys
        return torch.cat([keys[:, : keys.shape[1] - count], queries[:, -count:]], dim=1)


@core("position.given", "position.rotary", **PLACED)
class OffsetTwice(PlacedCore):
    """The first position of the queries is added to all of them once more."""

    def of_queries(self, queries: Tensor, keys: Tensor) -> Tensor:
        del keys
        return queries + queries[:, :1]


@core("position.offset-invariant", "position.given", **PLACED)
class KeysFromTheFirst(PlacedCore):
    """Positions of keys are counted from the first key, those of queries are not."""

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries, past
        return keys - keys[:, :1]


@core("position.offset-invariant", "position.given", **PLACED)
class PositionsClipped(PlacedCore):
    """Positions past the end of a table of 64 are those of its last row."""

    def of_queries(self, queries: Tensor, keys: Tensor) -> Tensor:
        del keys
        return queries.clamp_max(63)

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries, past
        return keys.clamp_max(63)


@core("position.left-padding", "position.given", **PLACED)
class PaddingCounted(PlacedCore):
    """Queries are counted from the first slot on, padding included; keys stand where they are."""

    def of_queries(self, queries: Tensor, keys: Tensor) -> Tensor:
        length, count = keys.shape[1], queries.shape[1]
        padding = (keys == 0).sum(dim=1, keepdim=True) - 1
        del length, count
        return queries + padding.clamp_min(0)


@core("position.ring", "position.given", **PLACED)
class RingReadInOrder(PlacedCore):
    """The keys of a ring stand in the order of their slots: their positions are sorted."""

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries, past
        return keys.sort(dim=1).values


@core("position.ring", "position.given", **PLACED)
class RingOfTheFirstItem(PlacedCore):
    """The rings of all items are turned as that of the first."""

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries, past
        return keys.sort(dim=1).values.gather(
            1, keys[:1].argsort(dim=1).argsort(dim=1).expand_as(keys)
        )


@core("position.evicted", "position.given", **PLACED)
class GapsClosed(PlacedCore):
    """Keys are counted back from the last one, as if none had been evicted."""

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries, past
        count = keys.shape[1]
        return (keys[:, -1:] + torch.arange(count) - count + 1).clamp_min(0) if count else keys


@core("position.given", "bias.alibi", **APART)
class DistancesInMemory(PlacedCore):
    """Linear biases go by places in memory, not by the positions of the call."""

    def __init__(self) -> None:
        super().__init__(rotary=False, alibi=True)

    def distances(self, queries: Tensor, keys: Tensor) -> Tensor:
        rows, columns = queries.shape[1], keys.shape[1]
        ahead = torch.arange(columns) - torch.arange(columns - rows, columns)[:, None]
        return ahead.expand(len(queries), 1, -1, -1)


@core("position.given", "mask.causal-combined", **SEEN)
class CausalByPlace(PlacedCore):
    """Causality and window go by places in memory where positions are declared."""

    def __init__(self) -> None:
        super().__init__(rotary=False)


@core("position.given", "mask.causal-alignment", **PLACED)
class CausalByPosition(PlacedCore):
    """Causality and window go by positions though places in memory are declared."""

    def __init__(self) -> None:
        super().__init__(by_positions=True)


@core("cache.golden", "cache.position-offset", **PLACED)
class CachedKeysFromTheNewPositions(PlacedCore):
    """Cached keys stand where the new ones do."""

    def of_keys(self, keys: Tensor, queries: Tensor, past: int) -> Tensor:
        del queries
        if not past:
            return keys
        again = keys[:, past + torch.arange(past) % (keys.shape[1] - past)]
        return torch.cat([again, keys[:, past:]], dim=1)


@layer("cache.golden", **IN_TRANSFORMERS)
class CachedKeysTurnedAgain(PlacedLayer):
    """Cached keys, which come turned, are turned once more by their places."""

    def cached(self, key: Tensor) -> Tensor:
        places = torch.arange(key.shape[2]).expand(len(key), -1)
        return self.core.turn(key, places)


@layer("position.given", "position.rotary", **IN_TRANSFORMERS)
class IdsOfTheFirstItem(PlacedLayer):
    """The ``position_ids`` of the first item are those of all."""

    def forward(
        self, hidden_states: Tensor, position_ids: Tensor, *more: Any, **others: Any
    ) -> Any:
        return super().forward(
            hidden_states, position_ids[:1].expand_as(position_ids), *more, **others
        )
