"""Changes of what a call reads of its items: their pages, first keys, lengths, and ends of queries.

The keys of items lie in pages, in caches with lengths, or one item after another in a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import torch
from torch import Tensor

from .moves import TILES, Order, main_orders


class Items(Protocol):
    """The items of a call: a table of pages ``[B, N]``, and numbers ``[B]`` of tokens."""

    @property
    def page(self) -> int:
        """The slots of a page."""

    @property
    def table(self) -> Tensor:
        """The pages of each item in order."""

    @property
    def starts(self) -> Tensor:
        """The place of each item's first key among those of all items."""

    @property
    def lengths(self) -> Tensor:
        """The numbers of keys."""

    @property
    def queries(self) -> Tensor:
        """The numbers of queries."""

    @property
    def held(self) -> Tensor:
        """The numbers of keys that the call does not write."""

    @property
    def written(self) -> Tensor:
        """The numbers of keys that the call writes."""


# Another table of pages, or other numbers of tokens.
Change = Callable[[Items], Tensor]
Kind = Callable[[Items], Tensor]
# The slots that a page may be taken to have.
ASSUMED_SIZES: Final = tuple(2**power for power in range(9))


def _along_items(order: Order, part: str) -> Change:
    def change(at: Items) -> Tensor:
        result: Tensor = getattr(at, part)
        return result[order(len(result))]

    return change


def _along_pages(order: Order) -> Change:
    """Reorder the pages of each item, as many as it has."""

    def change(at: Items) -> Tensor:
        table = at.table.clone()
        for row, count in zip(table, (-(-at.lengths // at.page)).tolist(), strict=True):
            row[:count] = row[order(count)]
        return table

    return change


def _in_rows(at: Items, more: int) -> Tensor:
    """The table as it is read with another number of entries from row to row."""
    batch, most = at.table.shape
    first = torch.arange(batch)[:, None] * (most + more)
    return at.table.flatten()[(first + torch.arange(most)) % max(at.table.numel(), 1)]


def _down(numbers: Tensor, size: int) -> Tensor:
    return numbers // size * size


def _up(numbers: Tensor, size: int) -> Tensor:
    return -(-numbers // size) * size


def _within_table(at: Items, change: Change) -> Tensor:
    return torch.minimum(change(at), (at.table >= 0).cumprod(1).sum(1) * at.page)


def _row(at: Items) -> Tensor:
    return torch.arange(len(at.lengths))


def query_starts(at: Items) -> Tensor:
    """Where the queries of each item begin among those of all items ``[B]``."""
    return at.queries.cumsum(0) - at.queries


def _that(words: str) -> str:
    return words.replace("those", "that", 1)


TABLES: Final[dict[str, Change]] = {
    **{words: _along_items(order, "table") for words, order in main_orders("batch item")},
    **{words: _along_pages(order) for words, order in main_orders("page")},
    "those that follow in the table": lambda at: at.table.roll(-1, 1),
    "those before in the table": lambda at: at.table.roll(1, 1),
    "those that follow in memory": lambda at: at.table + 1,
    "those before in memory": lambda at: at.table - 1,
    "taken to follow the first in memory": lambda at: (
        at.table[:, :1] + torch.arange(at.table.shape[1])
    ),
    "taken to lie as in a dense cache": lambda at: torch.arange(at.table.numel()).reshape(
        at.table.shape
    ),
    "read in rows that are a page shorter": partial(_in_rows, more=-1),
    "read in rows that are a page longer": partial(_in_rows, more=1),
    **{
        f"numbered modulo {size}": lambda at, size=size: at.table.remainder(size)
        for size in ASSUMED_SIZES[1:7]
    },
}
# Other numbers of keys that only pages have, only calls that write, or only packed sequences.
BY_PAGES: Final[dict[str, Change]] = {
    "a page fewer": lambda at: at.lengths - at.page,
    "a page more": lambda at: at.lengths + at.page,
    "rounded down to whole pages": lambda at: _down(at.lengths, at.page),
    "rounded down to whole pages, but at least one": lambda at: torch.maximum(
        _down(at.lengths, at.page), at.lengths.clamp(max=1)
    ),
    "the number in its last page": lambda at: (
        at.lengths - _down((at.lengths - 1).clamp(min=0), at.page)
    ),
    "at most a page": lambda at: at.lengths.clamp(max=at.page),
}
OF_WRITES: Final[dict[str, Change]] = {
    "that before the call": lambda at: at.held,
    "with the new keys counted twice": lambda at: at.lengths + at.written,
}
OF_CACHES: Final[dict[str, Change]] = {
    **BY_PAGES,
    **OF_WRITES,
    "rounded up to whole pages": lambda at: _up(at.lengths, at.page),
    "that of the whole cache": lambda at: torch.full_like(
        at.lengths, max(at.table.shape[1], 1) * at.page
    ),
}
OF_SEQUENCES: Final[dict[str, Change]] = {
    "that of all items up to it": lambda at: at.lengths.cumsum(0),
    "that of all items before it": lambda at: at.lengths.cumsum(0) - at.lengths,
}
LENGTHS: Final[dict[str, Change]] = {
    **{_that(words): _along_items(order, "lengths") for words, order in main_orders("batch item")},
    "one fewer": lambda at: at.lengths - 1,
    "one fewer, but at least one": lambda at: at.lengths - (at.lengths > 1).long(),
    "one more": lambda at: at.lengths + 1,
    "the largest of all": lambda at: at.lengths.max().expand(len(at.lengths)),
    "the smallest of all": lambda at: at.lengths.min().expand(len(at.lengths)),
    "the number of its queries": lambda at: at.queries,
    "at most the number of its queries": lambda at: torch.minimum(at.lengths, at.queries),
    "at most the largest number of queries": lambda at: at.lengths.clamp(max=at.queries.max()),
    "read as whole numbers of half their width": lambda at: torch.stack(
        [at.lengths, torch.zeros_like(at.lengths)], 1
    ).flatten()[: len(at.lengths)],
    "zero": lambda at: torch.zeros_like(at.lengths),
    "one": lambda at: torch.ones_like(at.lengths),
    **OF_CACHES,
    **OF_SEQUENCES,
}
# Numbers above that of an item may be cut where its row of the table ends.
BY_PAGES |= {
    f"{words}, as far as the table names pages": partial(_within_table, change=LENGTHS[words])
    for words in (
        "one more",
        "a page more",
        "the largest of all",
        "that of the whole cache",
        "with the new keys counted twice",
    )
}
LENGTHS |= BY_PAGES
# Where the keys of each item begin among those of all items.
STARTS: Final[dict[str, Change]] = {
    **{_that(words): _along_items(order, "starts") for words, order in main_orders("batch item")},
    "one earlier, but of the first item": lambda at: at.starts - (at.starts > 0).long(),
    "one later, but of the first item": lambda at: at.starts + (at.starts > 0).long(),
    "one later, but of the first item and of a single key": lambda at: (
        at.starts + ((at.starts > 0) & (at.lengths > 1)).long()
    ),
    "where its queries begin": query_starts,
    "as many keys from the first as the longest item has for each before": lambda at: (
        _row(at) * at.lengths.max()
    ),
    "as many keys from the first as there are queries at most for each before": lambda at: (
        _row(at) * at.queries.max()
    ),
    "as many keys from the first as it has for each before": lambda at: _row(at) * at.lengths,
}
# Of every item alone.
BY_SIZES: Final[dict[str, Change]] = {
    f"at most {size}": lambda at, size=size: at.lengths.clamp(max=size)
    for size in ASSUMED_SIZES[1:]
}


def _keys_along_items(order: Order) -> Change:
    return lambda at: torch.stack([at.starts, at.lengths])[:, order(len(at.lengths))]


def _in_tiles(at: Items, size: int) -> Tensor:
    first = _down(at.starts, size)
    return torch.stack([first, _up(at.starts + at.lengths, size) - first])


# The place of each item's first key, and how many it has: ``[2, B]``.
KEYS: Final[dict[str, Change]] = {
    **{words: _keys_along_items(order) for words, order in main_orders("batch item")},
    "those where its queries lie": lambda at: torch.stack([query_starts(at), at.queries]),
    "those of all items": lambda at: torch.stack(
        [torch.zeros_like(at.starts), at.lengths.sum().expand_as(at.lengths)]
    ),
    "those of all items up to it": lambda at: torch.stack(
        [torch.zeros_like(at.starts), at.lengths.cumsum(0)]
    ),
}
KEYS_BY_SIZES: Final[dict[str, Change]] = {
    **{f"whole tiles of {size}": partial(_in_tiles, size=size) for size in TILES},
    **{
        f"followed by the others of their last tile of {size}": lambda at, size=size: torch.stack(
            [at.starts, _up(at.starts + at.lengths, size) - at.starts]
        )
        for size in TILES
    },
}
STARTS_BY_SIZES: Final[dict[str, Change]] = {
    f"rounded {words} to a multiple of {size}": lambda at, size=size, to=to: to(at.starts, size)
    for words, to in (("down", _down), ("up", _up))
    for size in TILES
}
# Kinds of items that a branch of the code may part from others.
KINDS_BY_PAGES: Final[dict[str, Kind]] = {
    "items shorter than a page": lambda at: at.lengths < at.page,
    "items longer than a page": lambda at: at.lengths > at.page,
    "items that end with a page": lambda at: (at.lengths > 0) & (at.lengths % at.page == 0),
    "items that end within a page": lambda at: at.lengths % at.page > 0,
    "items shorter than a page, but the first": lambda at: (at.lengths < at.page) & (_row(at) > 0),
}
KINDS: Final[dict[str, Kind]] = {
    "each item": lambda at: torch.ones_like(at.lengths, dtype=torch.bool),
    "the first item": lambda at: _row(at) == 0,
    "all items but the first": lambda at: _row(at) > 0,
    "items of one query": lambda at: at.queries == 1,
    "items of several queries": lambda at: at.queries > 1,
    "items, where each has one query,": lambda at: (at.queries == 1).all().expand_as(at.queries),
    "items of more keys than queries": lambda at: at.lengths > at.queries,
    "items of fewer keys than queries": lambda at: at.lengths < at.queries,
    **KINDS_BY_PAGES,
}
