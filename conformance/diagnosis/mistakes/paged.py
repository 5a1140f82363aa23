"""Mistakes of calls with caches that have names: which pages and how many keys are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from ...declare.declaration import mixed_in
from ...operators.items import ASSUMED_SIZES
from ...problems.arrangements import slots_of
from ...problems.inputs import Inputs
from ...problems.misreading import misread, read_whole_pages
from ...problems.paging import Slots
from ._steps import require
from .named_mistake import DeclaredCall, NamedMistake, named
from .readings import (
    BEHIND,
    BY_LENGTH,
    BY_TABLE,
    ENDS,
    KEYS_READ,
    OF_PAGES,
    has_caches,
    has_pages,
    reading_ways,
)

_TABLES_NAMED: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "pages-of-another-item",
        "each item reads the pages of the next item, of the one before, or of the first or last",
        tuple(f"those of the {which}" for which in ("batch item after", "batch item before"))
        + tuple(f"those of the {which} batch item" for which in ("first", "last")),
    ),
    (
        "first-page-repeated",
        "every page of an item is read as its first one",
        ("those of the first page",),
    ),
    (
        "pages-in-a-row",
        "the pages of an item are taken to lie one after another in memory",
        ("taken to follow the first in memory",),
    ),
    (
        "table-ignored",
        "pages are read as if the cache were dense",
        ("taken to lie as in a dense cache",),
    ),
    (
        "pages-in-reverse",
        "the pages of an item are read from the last to the first",
        ("those of the page counted from the end",),
    ),
    (
        "page-beside",
        "each page of an item is read as the next one, or the one before",
        ("those that follow in the table", "those before in the table"),
    ),
    (
        "page-number-off",
        "each page is taken to lie behind, or before, where it lies in memory",
        ("those that follow in memory", "those before in memory"),
    ),
)
# Name, sentence, kind of items, operator, primary clause.
_LENGTHS_NAMED: Final = (
    (
        "length-off",
        "an item loses its last key",
        "each item",
        "one fewer, but at least one",
        "golden",
    ),
    (
        "length-off",
        "an item has a key more than its length says",
        "each item",
        "one more",
        "golden",
    ),
    (
        "lengths-of-another-item",
        "all items have the length of the first",
        "each item",
        "that of the first batch item",
        "golden",
    ),
    (
        "lengths-of-another-item",
        "all items have the length of the longest",
        "each item",
        "the largest of all",
        "golden",
    ),
    (
        "lengths-of-another-item",
        "each item has the length of the next",
        "each item",
        "that of the batch item after",
        "golden",
    ),
    (
        "lengths-ignored",
        "every slot of a cache, or of a row of the table, is attended",
        "each item",
        "that of the whole cache",
        "golden",
    ),
    (
        "last-page-lost",
        "what the last page holds is lost unless the page is full",
        "each item",
        "rounded down to whole pages, but at least one",
        "page-edges",
    ),
    (
        "last-page-lost",
        "a full last page counts as empty",
        "items that end with a page",
        "a page fewer",
        "page-edges",
    ),
    *(
        (
            "page-too-many",
            "where an item ends with a page the page behind it is attended, too",
            "items that end with a page",
            words,
            "page-edges",
        )
        for words in ("a page more", "a page more, as far as the table names pages")
    ),
    (
        "new-keys-not-attended",
        "the new keys are written, but not attended",
        "each item",
        "that before the call",
        "golden",
    ),
    (
        "new-keys-counted-twice",
        "the new keys are counted twice in the length of an item",
        "each item",
        "with the new keys counted twice",
        "golden",
    ),
)
# Where the slots behind an item end with its last page, that explains as much.
_GENERAL: Final = {"lengths-ignored": "last-page-read-whole"}


def _of_tables(prefix: str, said: str, part: str) -> Iterator[NamedMistake]:
    for name, sentence, operators in _TABLES_NAMED:
        ways = (way for words in operators for way in reading_ways((part,), words))
        yield from named(f"{prefix}{name}", "paged.golden", needs="caches")(
            f"{said}{sentence}", BY_TABLE, *ways
        )


def _of_lengths() -> Iterator[NamedMistake]:
    for name, sentence, items, words, clause in _LENGTHS_NAMED:
        general = _GENERAL.get(name, "")
        yield from named(name, f"paged.{clause}", needs="caches", special_of=general)(
            sentence, BY_LENGTH, *reading_ways(KEYS_READ, words, items)
        )


def _as_read(read: Callable[[Slots], dict[str, Any]]) -> dict[str, Any]:
    """The way of a mistake that reads slots or pages otherwise."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        if call.inputs.store is None:
            return None
        require(mixed_in(call.inputs.point) is None)
        return misread(call.inputs, **read(slots_of(call.inputs)))

    return {"inputs": inputs_for}


def _read_whole_pages(call: DeclaredCall) -> Inputs | None:
    if call.inputs.store is None:
        return None
    require(mixed_in(call.inputs.point) is None)
    return read_whole_pages(call.inputs)


def _without_empty_items(at: Slots) -> dict[str, Any]:
    """Items without keys are dropped, and the next ones move up."""
    order = torch.argsort((at.lengths == 0).long(), stable=True)
    lengths = at.lengths[order]
    return {"table": at.table[order], "lengths": lengths, "ends": lengths}


def _heads_outside(pages: Tensor) -> Tensor:
    """Pages ``[N, slots, H, D]`` in memory, read as ``[N, H, slots, D]``."""
    return pages.reshape(pages.transpose(1, 2).shape).transpose(1, 2)


def _slots_outside(pages: Tensor) -> Tensor:
    """Pages that lie as ``[N, H, slots, D]`` in memory, read as ``[N, slots, H, D]``."""
    return pages.transpose(1, 2).reshape(pages.shape)


def in_pages_of(at: Slots, rank: Tensor, size: int, *, counted: bool) -> Tensor:
    """The slots of tokens cut into pages of another size; ``counted``: those in memory have it."""
    page = at.table.gather(1, (rank // size).clamp(max=at.table.shape[1] - 1))
    return page * (size if counted else at.store.page_size) + rank % size


def _in_first_slots(at: Slots, rank: Tensor, size: int) -> Tensor:
    """The first slots of each page, again and again."""
    own = at.store.page_size
    return at.table.gather(1, rank // own) * own + rank % own % size


def _slots(places: Callable[..., Tensor], **options: Any) -> dict[str, Any]:
    def read(at: Slots) -> dict[str, Any]:
        rank = torch.arange(max(1, int(at.lengths.max()))).expand(len(at.lengths), -1)
        return {"slots": places(at, rank, **options)}

    return _as_read(read)


_paged: Final = partial(named, primary="paged.golden", needs="caches", where=has_pages)

PAGED: Final[tuple[NamedMistake, ...]] = (
    *_of_tables("", "", OF_PAGES[0]),
    *_of_tables("values-by-", "of values alone: ", OF_PAGES[1]),
    *_paged("page-size-assumed")(
        "a page is taken to have another number of slots",
        "take the number of slots from the shape of the caches",
        *(
            _slots(in_pages_of, size=size, counted=counted)
            for size, counted in product(ASSUMED_SIZES, (False, True))
        ),
    ),
    *_paged("page-cut")(
        "only the first slots of a page are read, again and again",
        "go over all slots of a page",
        *(_slots(_in_first_slots, size=size) for size in ASSUMED_SIZES),
    ),
    *named("last-page-read-whole", "paged.unused-unseen", needs="caches", where=has_caches)(
        "the last page of an item, or its cache, is attended to its end",
        "hide the slots behind the last key",
        {"inputs": _read_whole_pages},
        *reading_ways(KEYS_READ, "rounded up to whole pages"),
    ),
    *named("empty-items-shift-others", "paged.empty-sequence", needs="caches", where=has_pages)(
        "items without keys are dropped from the table, and the next ones move up",
        "keep the row of each item, with keys or without",
        _as_read(_without_empty_items),
    ),
    *_paged("slots-for-heads")(
        "the heads of a page are read as its slots",
        "page_axes says whether slots or heads come first",
        _as_read(lambda _at: {"pages": _heads_outside}),
        _as_read(lambda _at: {"pages": _slots_outside}),
    ),
    *_of_lengths(),
    *named("queries-from-the-first-key", "paged.golden", needs="caches", where=has_caches)(
        "queries stand at the first keys of an item",
        BEHIND,
        *reading_ways(ENDS, "the number of its queries"),
    ),
    *named("queries-behind-the-longest", "paged.golden", needs="caches", where=has_caches)(
        "queries stand at the end of the longest item, or where its new keys begin",
        BEHIND,
        *reading_ways(ENDS, "the largest of all"),
        *reading_ways(ENDS, "that before the call"),
        *reading_ways(ENDS, "with the new keys counted twice"),
    ),
)
