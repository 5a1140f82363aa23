"""Positions given by a call: how they are drawn and handed over.

Positions are int64, and any from 0 on are legal: drawn are those from zero, from an offset of each
item, of padding on the left, with gaps where keys were evicted, with restarts of packed texts, and
keys in the order of a ring, to expose code that counts places in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Generator, Tensor

from ..base.geometry import Geometry
from ..base.results import Replaceable
from ..declare.declaration import GIVEN_POSITIONS, Declaration

# Rows beyond twice the longer length of a problem, for clauses that add tokens.
_MORE: Final = 64
# The largest first position, and the largest step between neighbouring positions.
_FARTHEST: Final = 1000
_WIDEST_GAP: Final = 4
# One in ``_APART`` problems has queries at positions that are drawn apart from those of keys.
_APART: Final = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions(Replaceable):
    """The positions of a call: int64 ``[B, N]`` for queries and keys.

    ``queries`` is None where the queries are the last keys. Missing rows or items repeat the given
    ones.
    """

    queries: Tensor | None
    keys: Tensor

    def of(self, sizes: Geometry) -> tuple[Tensor, Tensor]:
        """The positions ``[B, Lq]`` and ``[B, Lk]`` of a call's queries and keys."""
        keys = _cut(self.keys, sizes.batch, sizes.key_length)
        if self.queries is None:
            return keys[:, sizes.key_length - sizes.query_length :], keys
        return _cut(self.queries, sizes.batch, sizes.query_length), keys

    def of_items(self, order: Tensor) -> Positions:
        """The positions of some items, in their order."""
        return self._each(lambda table: table[order % len(table)])

    def of_queries(self, order: Tensor) -> Positions:
        """The positions with those of some queries in front, in their order."""
        queries = self.queries
        return self if queries is None else self.replace(queries=_in_front(queries, order))

    def of_keys(self, order: Tensor) -> Positions:
        """The positions with those of some keys in front, in their order."""
        return self.replace(keys=_in_front(self.keys, order))

    def later(self, by: Tensor) -> Positions:
        """The positions plus an offset ``[B]`` of each item."""
        return self._each(lambda table: table + by[:, None])

    def before_keys(self) -> Positions:
        """The positions with the queries of the first item before all of its keys."""
        if self.queries is None or not bool(self.keys[:1].any()):
            return self
        queries, keys = self.queries.clone(), self.keys.clone()
        queries[0], keys[0] = 0, keys[0].clamp_min(1)
        return Positions(queries=queries, keys=keys)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Positions:
        queries = self.queries
        return self.replace(
            queries=None if queries is None else change(queries), keys=change(self.keys)
        )


def _cut(table: Tensor, batch: int, length: int) -> Tensor:
    items, rows = table.shape
    return table[torch.arange(batch) % items][:, torch.arange(length) % rows]


def _in_front(table: Tensor, order: Tensor) -> Tensor:
    rows = torch.arange(table.shape[1])
    others = rows[~torch.isin(rows, order)]
    return torch.cat([table[:, order], table[:, others]], dim=1)


def from_zero(sizes: Geometry, *, same: bool) -> Positions:
    """Positions of keys from zero on, and of the queries as the last of them."""
    keys = torch.arange(_rows(sizes)).repeat(sizes.batch, 1)
    return Positions(queries=None if same else _of_last(keys, sizes), keys=keys)


def in_a_ring(sizes: Geometry, *, same: bool) -> tuple[Positions, Positions]:
    """Positions of a ring whose newest keys are written over the oldest; and of one in order."""
    straight = from_zero(sizes, same=same)
    return straight.replace(keys=_as_ring(straight.keys, sizes)), straight


def evicted(sizes: Geometry, *, same: bool) -> tuple[Positions, Positions]:
    """Positions of first and newest keys, those between them evicted; and as if none were."""
    first = sizes.key_length // 2
    lost = _WIDEST_GAP + torch.arange(sizes.batch)[:, None]
    straight = from_zero(sizes, same=False)
    keys = straight.keys + lost * (straight.keys >= first)
    straight = straight.replace(queries=None if same else straight.queries)
    return Positions(queries=None if same else _of_last(keys, sizes), keys=keys), straight


def draw_positions(
    declared: Declaration, sizes: Geometry, generator: Generator
) -> Positions | None:
    """Positions of every token and more; None if the declaration takes no positions."""
    if GIVEN_POSITIONS not in declared.features:
        return None
    shape = (sizes.batch, _rows(sizes))

    def drawn() -> Tensor:
        kind = _KINDS[int(torch.randint(len(_KINDS), (1,), generator=generator))]
        made = kind(shape, max(sizes.key_length, 1), generator)
        # Code with a table of positions has no more of them than the longest call has tokens.
        return made if declared.max_length is None else made % declared.max_length

    keys, another = drawn(), drawn()
    apart, ring = torch.randint(_APART, (2,), generator=generator).tolist()
    if declared.inputs == "self":
        return Positions(queries=None, keys=_as_ring(keys, sizes) if ring == 0 else keys)
    first = declared.semantics.causal_alignment == "top-left"
    queries = keys if first else _of_last(keys, sizes)
    return Positions(
        queries=another if apart == 0 else queries,
        keys=_as_ring(keys, sizes) if ring == 0 else keys,
    )


def _rows(sizes: Geometry) -> int:
    return 2 * max(sizes.query_length, sizes.key_length) + _MORE


def _of_last(keys: Tensor, sizes: Geometry) -> Tensor:
    """The positions of the last keys for as many queries; more queries stand at the first."""
    rows = torch.arange(keys.shape[1]) + sizes.key_length - sizes.query_length
    return keys[:, rows.clamp(0, keys.shape[1] - 1)]


def _as_ring(keys: Tensor, sizes: Geometry) -> Tensor:
    """The newest keys written over the oldest, each item to another place."""
    length = sizes.key_length
    turned = [table[:length].roll(1 + item) for item, table in enumerate(keys)]
    return torch.cat([torch.stack(turned), keys[:, length:]], dim=1)


Kind = Callable[[tuple[int, int], int, Generator], Tensor]


def _from_zero(shape: tuple[int, int], _length: int, _generator: Generator) -> Tensor:
    return torch.arange(shape[1]).repeat(shape[0], 1)


def _from_an_offset(shape: tuple[int, int], _length: int, generator: Generator) -> Tensor:
    first = torch.randint(1, _FARTHEST, (shape[0], 1), generator=generator)
    return first + torch.arange(shape[1])


def _padded_on_the_left(shape: tuple[int, int], length: int, generator: Generator) -> Tensor:
    padding = torch.randint(length, (shape[0], 1), generator=generator)
    return (torch.arange(shape[1]) - padding).clamp_min(0)


def _with_gaps(shape: tuple[int, int], _length: int, generator: Generator) -> Tensor:
    steps = torch.randint(1, _WIDEST_GAP + 1, shape, generator=generator)
    return steps.cumsum(dim=-1)


def _with_restarts(shape: tuple[int, int], length: int, generator: Generator) -> Tensor:
    sizes = torch.randint(1, length + 1, (shape[0], 1), generator=generator)
    return torch.arange(shape[1]) % sizes


# Consecutive positions of all items show distances alone: most have others.
_KINDS: Final[tuple[Kind, ...]] = (
    _with_gaps,
    _from_an_offset,
    _padded_on_the_left,
    _with_restarts,
    _with_gaps,
    _from_zero,
)
