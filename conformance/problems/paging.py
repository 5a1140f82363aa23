"""Caches of keys and values whose items have lengths of their own: dense, or in pages.

The golden gets the keys of a problem, of which an item may lack some; a call gets caches that hold
the keys of each item from its first slot on, and junk in every other slot. Items whose keys begin
alike share the full pages of that beginning, as prefix caches do, except pages that a call writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Generator, Tensor

from ..base.geometry import Geometry
from ..base.results import Replaceable
from ..declare.declaration import Declaration

# What unused slots hold: no weight hides a value so large, and a key of zeros outweighs others.
JUNK_KEY: Final = 0.0
JUNK_VALUE: Final = 1e3
# Pools of pages have at most so many, where a declared page size allows it.
MOST_PAGES: Final = 64
# Slots of a dense cache that no item reaches.
_ROOM: Final = 2
# The entries of a table behind the end of an item: none, a page of nobody, or of somebody.
TAILS: Final = ("none", "unused", "other")
_NONE: Final = -1


@dataclass(frozen=True, kw_only=True)
class KeyStore(Replaceable):
    """How a problem's keys and values lie in caches.

    page_size
        The slots of a page; 0 for dense caches.
    seed
        Of the order of pages.
    writes
        Whether the call gets the keys of its queries to write them into the caches.
    tail
        The entries of a table behind the end of an item, see ``TAILS``.
    spare
        The pages of nobody.
    shares
        Whether items that begin alike share pages.
    junk
        What unused slots of keys and of values hold.
    """

    page_size: int
    seed: int
    writes: bool = False
    tail: str = "none"
    spare: int = 1
    shares: bool = True
    junk: tuple[float, float] = (JUNK_KEY, JUNK_VALUE)

    def pages_of(self, length: int) -> int:
        """The pages of so many tokens."""
        return -(-length // self.page_size)


def draw_store(
    declared: Declaration, sizes: Geometry, problem_seed: int, seed: int
) -> KeyStore | None:
    """The caches of a problem; None for a layout without. Page sizes come in turn."""
    layout = declared.head_layout
    if not layout.cache_axes:
        return None
    writes = "cache_write" in declared.features
    if not layout.is_paged:
        return KeyStore(page_size=0, seed=seed, writes=writes)
    few = [n for n in declared.page_sizes if sizes.batch * -(-sizes.key_length // n) < MOST_PAGES]
    fitting = few or [max(declared.page_sizes)]
    return KeyStore(
        page_size=fitting[problem_seed % len(fitting)],
        seed=seed,
        writes=writes,
        tail=TAILS[seed // 2 % len(TAILS)],
        spare=1 + seed % 2,
        shares=seed % 3 != 2,  # noqa: PLR2004 (two of three)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots(Replaceable):
    """Where the tokens of each item lie.

    ``table [B, most]`` holds the pages of each item in order; ``queries``, ``lengths`` and
    ``written [B]`` are the numbers of its queries, its keys, and those of them that the call
    writes; ``count`` is the number of pages, or of slots an item. ``starts [B]`` are the slots of
    the first keys.
    """

    store: KeyStore
    table: Tensor
    queries: Tensor
    lengths: Tensor
    count: int

    @property
    def starts(self) -> Tensor:
        """The slot of the first key of each item, if its keys lie one after another."""
        return torch.arange(len(self.lengths)) * self.count

    @property
    def page(self) -> int:
        """The slots of a page; a dense cache is a page an item."""
        return self.store.page_size or self.count

    @property
    def written(self) -> Tensor:
        """How many keys of each item the call writes."""
        least = torch.minimum(self.queries, self.lengths)
        return least if self.store.writes else torch.zeros_like(least)

    @property
    def held(self) -> Tensor:
        """How many keys of each item its cache holds before the call."""
        return self.lengths - self.written

    @property
    def room(self) -> int:
        """The most tokens that an item has slots for."""
        size = self.store.page_size
        return self.table.shape[1] * size if size else self.count

    @property
    def total(self) -> int:
        """The number of all slots."""
        return self.count * (self.store.page_size or len(self.lengths))

    def places(self, rank: Tensor) -> Tensor:
        """The slot of each item's token of a rank ``[B, N]``, pages one after another."""
        if not self.store.page_size:
            return rank + self.starts[:, None]
        size = self.store.page_size
        return self.table.gather(1, rank // size) * size + rank % size


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSlots(Slots):
    """Where the keys of packed sequences lie: from ``first [B]`` on, ``count`` in all."""

    first: Tensor

    @property
    def starts(self) -> Tensor:
        """The row of the first key of each item."""
        return self.first

    @property
    def total(self) -> int:
        """The number of rows."""
        return self.count


def packed_slots(queries: Tensor, lengths: Tensor) -> PackedSlots:
    """Return the rows of the keys of items that lie one after another."""
    return PackedSlots(
        store=KeyStore(page_size=0, seed=0),
        table=torch.zeros(len(lengths), 0, dtype=torch.int64),
        queries=queries,
        lengths=lengths,
        count=int(lengths.sum()),
        first=lengths.cumsum(0) - lengths,
    )


def slots(store: KeyStore, queries: Tensor, lengths: Tensor, longest: int, alike: Tensor) -> Slots:
    """Hand out pages for items of some lengths; ``alike [B, B]`` counts tokens of equal beginnings.

    The pool's size depends on the longest item and the batch alone.
    """
    batch = len(lengths)
    if not store.page_size:
        none = torch.zeros(batch, 0, dtype=torch.int64)
        return Slots(
            store=store, table=none, queries=queries, lengths=lengths, count=longest + _ROOM
        )
    most = store.pages_of(longest)
    count = batch * most + store.spare
    order = torch.randperm(count, generator=Generator().manual_seed(store.seed))
    own, unused = order[: batch * most].reshape(batch, most), order[batch * most :]
    table = own.clone()
    at = Slots(store=store, table=table, queries=queries, lengths=lengths, count=count)
    untouched = at.held // store.page_size  # full pages that no call writes
    for item in range(1, batch if store.shares else 1):
        for other in range(item):
            common = int(alike[item, other]) // store.page_size
            common = min(common, int(untouched[item]), int(untouched[other]))
            table[item, :common] = table[other, :common]
    within = torch.arange(most) < (-(-lengths // store.page_size))[:, None]
    tails = {
        "none": torch.full_like(table, _NONE),
        "unused": unused[:1].expand(table.shape),
        "other": own.roll(1, dims=0)[:, :1].expand(table.shape),
    }
    return at.replace(table=torch.where(within, table, tails[store.tail]))


def equal_beginnings(every: tuple[Tensor, ...], present: Tensor) -> Tensor:
    """How many first tokens of each two items are equal in every tensor: int64 ``[B, B]``."""
    batch = len(present)
    tokens = [
        torch.cat([one[item].transpose(0, 1)[present[item]].flatten(1) for one in every], 1)
        for item in range(batch)
    ]
    common = torch.zeros(batch, batch, dtype=torch.int64)
    for item in range(batch):
        for other in range(item):
            least = min(len(tokens[item]), len(tokens[other]))
            same = (tokens[item][:least] == tokens[other][:least]).all(dim=1)
            common[item, other] = int(same.long().cumprod(0).sum())
    return common


def in_slots(heads: Tensor, at: Slots, present: Tensor, junk: float, *, after: bool) -> Tensor:
    """The pages, or items, that hold keys or values ``[B, H, L, D]``: ``[N, slots, H, D]``.

    Before the call, or ``after`` it.
    """
    store = at.store
    rank = present.cumsum(dim=-1) - 1
    there = present if after else present & (rank < at.held[:, None])
    tokens = heads.transpose(1, 2)
    size = store.page_size or at.count
    number = at.count if store.page_size else len(heads)
    pool = tokens.new_full((number * size, *tokens.shape[2:]), junk)
    pool[at.places(rank.clamp(min=0))[there]] = tokens[there]
    return pool.reshape(number, size, *tokens.shape[2:])


def by_rank(heads: Tensor, present: Tensor, fill: float) -> Tensor:
    """The tokens of each item from the first row on: ``[B, L, H, D]``."""
    tokens = heads.transpose(1, 2)
    rows = torch.full_like(tokens, fill)
    rows[present.nonzero()[:, 0], (present.cumsum(dim=-1) - 1)[present]] = tokens[present]
    return rows


def new_tokens(heads: Tensor, at: Slots, present: Tensor, queries: int) -> Tensor:
    """The keys (or values) of an item's last tokens, those to be written: ``[B, Lq, H, D]``.

    Rows of queries that an item lacks hold zeros, behind its own.
    """
    rank = present.cumsum(dim=-1) - 1
    row = rank - at.held[:, None]
    new = present & (row >= 0)
    tokens = heads.transpose(1, 2)
    rows = tokens.new_zeros(len(tokens), queries, *tokens.shape[2:])
    rows[new.nonzero()[:, 0], row[new]] = tokens[new]
    return rows


def page_keywords(at: Slots, queries: Tensor) -> dict[str, Any]:
    """Every keyword that may say where the tokens of items lie, for ``queries [B]`` of each."""
    offsets = torch.cat([queries.new_zeros(1), queries.cumsum(0)])
    keywords = {
        "cache_lengths": at.held,
        "block_table": at.table,
        "cu_seqlens_q": offsets,
    }
    if size := at.store.page_size:
        counts = -(-at.lengths // size)
        within = torch.arange(at.table.shape[1]) < counts[:, None]
        keywords |= {
            "kv_indptr": torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            "kv_indices": at.table[within],
            # A whole page where there is none, so that (pages - 1) * size + last is the length.
            "last_page_lengths": (at.lengths - 1).remainder(size) + 1,
        }
    return {name: value.to(torch.int32).contiguous() for name, value in keywords.items()}


def beginning_alike(every: tuple[Tensor, ...], present: Tensor, store: KeyStore) -> None:
    """Give some items the beginning of the first in place, as requests with one prompt have it."""
    if not store.page_size or len(present) == 0 or store.seed % 2:
        return
    first = present[0].nonzero().flatten()
    for item in range(1, len(present), 1 + store.seed // 2 % 2):
        own = present[item].nonzero().flatten()
        common = min(len(first), len(own)) // store.page_size * store.page_size
        for heads in every:
            heads[item, :, own[:common]] = heads[0, :, first[:common]]
