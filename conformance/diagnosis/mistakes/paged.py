"""Mistakes of calls with caches: which pages are read, how many keys, and where queries stand.

A part of what a call reads (the pages, the lengths, the end of the queries), with an operator, for
all items or for items of a kind, is a mistake. Those of the catalogue have names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from ...declare.declaration import mixed_in
from ...operators import main_orders
from ...problems.arrangements import slots_of
from ...problems.inputs import Inputs
from ...problems.misreading import misread, read_whole_pages
from ...problems.paging import Slots
from ._steps import require
from .named_mistake import DeclaredCall, NamedMistake, named

# Another table ``[B, N]`` of pages, or other numbers ``[B]`` of keys.
Change = Callable[[Slots], Tensor]
_BY_TABLE: Final = "page j of item i is block_table[i, j]"
_BY_LENGTH: Final = "item i has cache_lengths[i] keys, and those that the call writes"
_BEHIND: Final = "query i of item b stands at cache_lengths[b] - Lq + i"
# The slots that a page may be taken to have.
ASSUMED_SIZES: Final = tuple(2**power for power in range(9))


def _has_pages(inputs: Inputs) -> bool:
    return inputs.store is not None and bool(inputs.store.page_size)


def _has_caches(inputs: Inputs) -> bool:
    return inputs.store is not None


def _writes(inputs: Inputs) -> bool:
    return inputs.writes


def _size(at: Slots) -> int:
    return at.store.page_size or at.count


# -- operators ------------------------------------------------------------------------------------


def _along_items(order: Callable[[int], Tensor], part: str) -> Change:
    def change(at: Slots) -> Tensor:
        result: Tensor = getattr(at, part)
        return result[order(len(result))]

    return change


def _along_pages(order: Callable[[int], Tensor]) -> Change:
    """Reorder the pages of each item, as many as it has."""

    def change(at: Slots) -> Tensor:
        table = at.table.clone()
        for row, count in zip(table, (-(-at.lengths // _size(at))).tolist(), strict=True):
            row[:count] = row[order(count)]
        return table

    return change


def _in_rows(table: Tensor, more: int) -> Tensor:
    """The table as it is read with another number of entries from row to row."""
    batch, most = table.shape
    first = torch.arange(batch)[:, None] * (most + more)
    return table.flatten()[(first + torch.arange(most)) % max(table.numel(), 1)]


def _number_modulo(size: int, at: Slots) -> Tensor:
    return at.table.remainder(size)


def _cut_lengths(most: int, at: Slots) -> Tensor:
    return at.lengths.clamp(max=most)


_TABLES: Final[dict[str, Change]] = {
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
    "read in rows that are a page shorter": lambda at: _in_rows(at.table, -1),
    "read in rows that are a page longer": lambda at: _in_rows(at.table, 1),
    **{f"numbered modulo {size}": partial(_number_modulo, size) for size in ASSUMED_SIZES[1:7]},
}
# Other numbers of keys that only pages have, or only calls that write.
_BY_PAGES: Final[dict[str, Change]] = {
    "a page fewer": lambda at: at.lengths - _size(at),
    "a page more": lambda at: at.lengths + _size(at),
    "rounded down to whole pages": lambda at: at.lengths // _size(at) * _size(at),
    "rounded down to whole pages, but at least one": lambda at: torch.maximum(
        at.lengths // _size(at) * _size(at), at.lengths.clamp(max=1)
    ),
    "the number in its last page": lambda at: (
        at.lengths - ((at.lengths - 1).clamp(min=0) // _size(at) * _size(at))
    ),
    "at most a page": lambda at: at.lengths.clamp(max=_size(at)),
}
_OF_WRITES: Final[dict[str, Change]] = {
    "that before the call": lambda at: at.held,
    "with the new keys counted twice": lambda at: at.lengths + at.written,
}
_LENGTHS: Final[dict[str, Change]] = {
    **{
        words.replace("those", "that", 1): _along_items(order, "lengths")
        for words, order in main_orders("batch item")
    },
    "one fewer": lambda at: at.lengths - 1,
    "one fewer, but at least one": lambda at: at.lengths - (at.lengths > 1),
    "one more": lambda at: at.lengths + 1,
    **_BY_PAGES,
    **_OF_WRITES,
    "rounded up to whole pages": lambda at: -(-at.lengths // _size(at)) * _size(at),
    **{f"at most {size}": partial(_cut_lengths, size) for size in ASSUMED_SIZES[1:]},
    "the largest of all": lambda at: at.lengths.max().expand(len(at.lengths)),
    "the smallest of all": lambda at: at.lengths.min().expand(len(at.lengths)),
    "that of the whole cache": lambda at: torch.full_like(
        at.lengths, max(at.table.shape[1], 1) * _size(at)
    ),
    "the number of its queries": lambda at: at.queries,
    "read as whole numbers of half their width": lambda at: torch.stack(
        [at.lengths, torch.zeros_like(at.lengths)], 1
    ).flatten()[: len(at.lengths)],
    "zero": lambda at: torch.zeros_like(at.lengths),
    "one": lambda at: torch.ones_like(at.lengths),
}
# Items that a branch of the code may part from others.
_ITEMS_BY_PAGES: Final[dict[str, Callable[[Slots], Tensor]]] = {
    "items shorter than a page": lambda at: at.lengths < _size(at),
    "items longer than a page": lambda at: at.lengths > _size(at),
    "items that end with a page": lambda at: (at.lengths > 0) & (at.lengths % _size(at) == 0),
    "items that end within a page": lambda at: at.lengths % _size(at) > 0,
    "items shorter than a page, but the first": lambda at: (
        (at.lengths < _size(at)) & (torch.arange(len(at.lengths)) > 0)
    ),
}
_ITEMS: Final[dict[str, Callable[[Slots], Tensor]]] = {
    "each item": lambda at: torch.ones_like(at.lengths, dtype=torch.bool),
    "the first item": lambda at: torch.arange(len(at.lengths)) == 0,
    "all items but the first": lambda at: torch.arange(len(at.lengths)) > 0,
    **_ITEMS_BY_PAGES,
}
_OF_PAGES: Final = ("the pages", "the pages of the values", "the pages of the keys")
# Whether the keys are read by the number, and whether queries stand behind so many.
_OF_LENGTHS: Final = {
    "the number of keys": (True, False),
    "the length": (True, True),
    "the end of the queries": (False, True),
}
_KEYS_READ: Final = ("the number of keys", "the length")
_ENDS: Final = ("the end of the queries",)


@dataclass(frozen=True)
class Reading:
    """A part of what a call reads that is taken otherwise: ``words`` follow "the pages are"."""

    part: str
    words: str
    items: str = "each item"

    @property
    def sentence(self) -> str:
        """What is read, as a sentence."""
        verb = "are" if self.part in _OF_PAGES else "is"
        return f"{self.part} of {self.items} {verb} {self.words}"

    def part_of(self, at: Slots) -> Tensor:
        """The table or the numbers that are read, for items of the kind."""
        items = _ITEMS[self.items](at)
        if self.part in _OF_PAGES:
            return torch.where(items[:, None], _TABLES[self.words](at), at.table)
        return torch.where(items, _LENGTHS[self.words](at), at.lengths)

    def _read(self, inputs: Inputs) -> Inputs:
        at = slots_of(inputs)
        read = self.part_of(at)
        if self.part in _OF_PAGES:
            return misread(inputs, table=read)
        numbers = read.clamp(min=0, max=at.room)
        lengths, ends = _OF_LENGTHS[self.part]
        return misread(inputs, lengths=numbers if lengths else None, ends=numbers if ends else None)

    def inputs_for(self, call: DeclaredCall) -> Inputs | None:
        """The inputs of a call as they are read; None without caches."""
        inputs = call.inputs
        if inputs.store is None:
            return None
        require(mixed_in(inputs.point) is None)  # mixing depends on places of tokens
        read = self._read(inputs)
        if self.part == "the pages of the values":
            return misread(inputs).replace(value=read.value)
        if self.part == "the pages of the keys":
            return misread(inputs).replace(key=read.key)
        return read

    @property
    def where(self) -> Callable[[Inputs], bool]:
        """The calls that have such a part."""
        if self.words in _OF_WRITES:
            return _writes
        of_pages = (
            self.part in _OF_PAGES or self.words in _BY_PAGES or self.items in _ITEMS_BY_PAGES
        )
        return _has_pages if of_pages else _has_caches

    @property
    def fix(self) -> str:
        """What says how the part is to be read."""
        if self.part in _OF_PAGES:
            return _BY_TABLE
        return _BEHIND if self.part in _ENDS else _BY_LENGTH


@cache
def readings() -> tuple[Reading, ...]:
    """Every part with every operator, the plainest first.

    Of the pages of keys or values alone those of all items.
    """
    items, *kinds = _ITEMS
    whole = (*product(_OF_PAGES, _TABLES), *product(_OF_LENGTHS, _LENGTHS))
    limited = (*product(_OF_PAGES[:1], _TABLES), *product(_OF_LENGTHS, _LENGTHS))
    return (
        *(Reading(*one, items) for one in whole),
        *(Reading(*one, kind) for one, kind in product(limited, kinds)),
    )


@cache
def misread_caches() -> tuple[NamedMistake, ...]:
    """Every reading as a mistake, named by its sentence."""
    return tuple(
        NamedMistake(
            name=one.sentence.removeprefix("the "),
            primary="paged.golden",
            sentence=one.sentence,
            fix=one.fix,
            inputs=one.inputs_for,
            where=one.where,
            needs="caches",
        )
        for one in readings()
    )


# -- the catalogue --------------------------------------------------------------------------------

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
    (
        "page-too-many",
        "where an item ends with a page the page behind it is attended, too",
        "items that end with a page",
        "a page more",
        "page-edges",
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


def _ways(parts: Iterable[str], words: str, items: str = "each item") -> Iterator[dict[str, Any]]:
    for part in parts:
        one = Reading(part, words, items)
        yield {"inputs": one.inputs_for, "where": one.where}


def _of_tables(prefix: str, said: str, part: str) -> Iterator[NamedMistake]:
    for name, sentence, operators in _TABLES_NAMED:
        ways = (way for words in operators for way in _ways((part,), words))
        yield from named(f"{prefix}{name}", "paged.golden", needs="caches")(
            f"{said}{sentence}", _BY_TABLE, *ways
        )


def _of_lengths() -> Iterator[NamedMistake]:
    for name, sentence, items, words, clause in _LENGTHS_NAMED:
        general = _GENERAL.get(name, "")
        yield from named(name, f"paged.{clause}", needs="caches", special_of=general)(
            sentence, _BY_LENGTH, *_ways(_KEYS_READ, words, items)
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


_paged: Final = partial(named, primary="paged.golden", needs="caches", where=_has_pages)

PAGED: Final[tuple[NamedMistake, ...]] = (
    *_of_tables("", "", _OF_PAGES[0]),
    *_of_tables("values-by-", "of values alone: ", _OF_PAGES[1]),
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
    *named("last-page-read-whole", "paged.unused-unseen", needs="caches", where=_has_caches)(
        "the last page of an item, or its cache, is attended to its end",
        "hide the slots behind the last key",
        {"inputs": _read_whole_pages},
        *_ways(_KEYS_READ, "rounded up to whole pages"),
    ),
    *named("empty-items-shift-others", "paged.empty-sequence", needs="caches", where=_has_pages)(
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
    *named("queries-from-the-first-key", "paged.golden", needs="caches", where=_has_caches)(
        "queries stand at the first keys of an item",
        _BEHIND,
        *_ways(_ENDS, "the number of its queries"),
    ),
    *named("queries-behind-the-longest", "paged.golden", needs="caches", where=_has_caches)(
        "queries stand at the end of the longest item, or where its new keys begin",
        _BEHIND,
        *_ways(_ENDS, "the largest of all"),
        *_ways(_ENDS, "that before the call"),
        *_ways(_ENDS, "with the new keys counted twice"),
    ),
)
