"""Mistakes of calls with caches: which pages are read, how many keys, and where queries stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ...declare.declaration import mixed_in
from ...problems.arrangements import slots_of, there
from ...problems.inputs import Inputs
from ...problems.misreading import misread, read_whole_pages
from ...problems.paging import Slots
from ._steps import require
from .named_mistake import DeclaredCall, NamedMistake, named

# What is read instead, as arguments of ``misread``.
Reading = Callable[[Slots], dict[str, Any]]
_BY_TABLE: Final = "page j of item i is block_table[i, j]"
_BY_LENGTH: Final = "item i has cache_lengths[i] keys, and those that the call writes"
_BEHIND: Final = "query i of item b stands at cache_lengths[b] - Lq + i"
# The slots that a page may be taken to have.
_ASSUMED: Final = tuple(2**power for power in range(9))


def _has_pages(inputs: Inputs) -> bool:
    return inputs.store is not None and bool(inputs.store.page_size)


def _has_caches(inputs: Inputs) -> bool:
    return inputs.store is not None


def _misread(read: Reading) -> dict[str, Any]:
    """The way of a mistake that reads caches otherwise."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.store is None:
            return None
        require(mixed_in(inputs.point) is None)  # mixing depends on places of tokens
        return misread(inputs, **read(slots_of(inputs)))

    return {"inputs": inputs_for}


def _values_as_read(read: Reading) -> dict[str, Any]:
    """The way of a mistake that reads the values otherwise than their keys."""

    def inputs_for(call: DeclaredCall) -> Inputs | None:
        inputs = call.inputs
        if inputs.store is None:
            return None
        require(mixed_in(inputs.point) is None)
        other = misread(inputs, **read(slots_of(inputs)))
        return misread(inputs).replace(value=other.value)

    return {"inputs": inputs_for}


def _whole_pages(call: DeclaredCall) -> Inputs | None:
    if call.inputs.store is None:
        return None
    require(mixed_in(call.inputs.point) is None)
    return read_whole_pages(call.inputs)


def _stand_at_first_key(call: DeclaredCall) -> Inputs | None:
    """Queries stand at the first keys of an item."""
    inputs = call.inputs
    if inputs.store is None:
        return None
    require(mixed_in(inputs.point) is None)
    return misread(inputs, ends=there(inputs, "query", inputs.query).sum(dim=-1))


# -- tables ---------------------------------------------------------------------------------------


def _table(change: Callable[[Tensor], Tensor]) -> Reading:
    return lambda at: {"table": change(at.table)}


def _count_on(table: Tensor) -> Tensor:
    return table[:, :1] + torch.arange(table.shape[1])


def _ignored(table: Tensor) -> Tensor:
    return torch.arange(table.numel()).reshape(table.shape)


def _reverse_pages(at: Slots) -> dict[str, Any]:
    pages = -(-at.lengths // at.store.page_size)
    place = torch.arange(at.table.shape[1]).expand(at.table.shape)
    turned = (pages[:, None] - 1 - place).clamp(min=0)
    return {"table": at.table.gather(1, turned)}


_OF_TABLES: Final[tuple[tuple[str, str, tuple[Reading, ...]], ...]] = (
    (
        "pages-of-another-item",
        "each item reads the pages of the next item, of the one before, or of the first or last",
        (
            _table(lambda table: table.roll(-1, 0)),
            _table(lambda table: table.roll(1, 0)),
            _table(lambda table: table[:1].expand(table.shape)),
            _table(lambda table: table[-1:].expand(table.shape)),
        ),
    ),
    (
        "first-page-repeated",
        "every page of an item is read as its first one",
        (_table(lambda table: table[:, :1].expand(table.shape)),),
    ),
    (
        "pages-in-a-row",
        "the pages of an item are taken to lie one after another in memory",
        (_table(_count_on),),
    ),
    ("table-ignored", "pages are read as if the cache were dense", (_table(_ignored),)),
    (
        "pages-in-reverse",
        "the pages of an item are read from the last to the first",
        (_reverse_pages,),
    ),
    (
        "page-beside",
        "each page of an item is read as the next one, or the one before",
        (
            _table(lambda table: table.roll(-1, 1)),
            _table(lambda table: table.roll(1, 1)),
        ),
    ),
    (
        "page-number-off",
        "each page is taken to lie behind, or before, where it lies in memory",
        (_table(lambda table: table + 1), _table(lambda table: table - 1)),
    ),
)


def _heads_outside(pages: Tensor) -> Tensor:
    """Pages ``[N, slots, H, D]`` in memory, read as ``[N, H, slots, D]``."""
    return pages.reshape(pages.transpose(1, 2).shape).transpose(1, 2)


def _slots_outside(pages: Tensor) -> Tensor:
    """Pages that lie as ``[N, H, slots, D]`` in memory, read as ``[N, slots, H, D]``."""
    return pages.transpose(1, 2).reshape(pages.shape)


# -- sizes of pages -------------------------------------------------------------------------------


def _change_page_size(at: Slots, size: int, *, counted: bool) -> dict[str, Any]:
    """Cut tokens into pages of another size; ``counted``: pages in memory have it, too."""
    longest = max(1, int(at.lengths.max()))
    rank = torch.arange(longest).expand(len(at.lengths), -1)
    page = at.table.gather(1, (rank // size).clamp(max=at.table.shape[1] - 1))
    return {"slots": page * (size if counted else at.store.page_size) + rank % size}


def _cut(at: Slots, size: int) -> dict[str, Any]:
    """Read the first slots of each page again and again."""
    longest = max(1, int(at.lengths.max()))
    rank = torch.arange(longest).expand(len(at.lengths), -1)
    own = at.store.page_size
    return {"slots": at.table.gather(1, rank // own) * own + rank % own % size}


# -- lengths --------------------------------------------------------------------------------------


def _lengths(change: Callable[[Slots], Tensor]) -> tuple[Reading, ...]:
    """Other numbers of keys, with queries at their places, and at the end of those."""

    def within(at: Slots) -> Tensor:
        size = at.store.page_size
        return change(at).clamp(min=0, max=at.table.shape[1] * size if size else at.count)

    return (
        lambda at: {"lengths": within(at)},
        lambda at: {"lengths": within(at), "ends": within(at)},
    )


def _size(at: Slots) -> int:
    return at.store.page_size or at.count


def _ends_with_a_page(at: Slots) -> Tensor:
    return (at.lengths > 0) & (at.lengths % _size(at) == 0)


def _whole(at: Slots) -> Tensor:
    return -(-at.lengths // _size(at)) * _size(at)


def _drop_empty_items(at: Slots) -> dict[str, Any]:
    """Items without keys are dropped, and the next ones move up."""
    order = torch.argsort((at.lengths == 0).long(), stable=True)
    lengths = at.lengths[order]
    return {"table": at.table[order], "lengths": lengths, "ends": lengths}


_OF_LENGTHS: Final[tuple[tuple[str, str, Callable[[Slots], Tensor]], ...]] = (
    ("length-off", "an item loses its last key", lambda at: at.lengths - (at.lengths > 1)),
    ("length-off", "an item has a key more than its length says", lambda at: at.lengths + 1),
    (
        "lengths-of-another-item",
        "all items have the length of the first",
        lambda at: at.lengths[:1].expand(len(at.lengths)),
    ),
    (
        "lengths-of-another-item",
        "all items have the length of the longest",
        lambda at: at.lengths.max().expand(len(at.lengths)),
    ),
    (
        "lengths-of-another-item",
        "each item has the length of the next",
        lambda at: at.lengths.roll(-1),
    ),
    (
        "lengths-ignored",
        "every slot of a cache, or of a row of the table, is attended",
        lambda at: torch.full_like(at.lengths, max(at.table.shape[1], 1) * _size(at)),
    ),
)
_OF_PAGES: Final[tuple[tuple[str, str, Callable[[Slots], Tensor]], ...]] = (
    (
        "last-page-lost",
        "what the last page holds is lost unless the page is full",
        lambda at: torch.where(
            at.lengths < _size(at), at.lengths.clamp(max=1), at.lengths // _size(at) * _size(at)
        ),
    ),
    (
        "last-page-lost",
        "a full last page counts as empty",
        lambda at: at.lengths - _size(at) * _ends_with_a_page(at),
    ),
    (
        "page-too-many",
        "where an item ends with a page the page behind it is attended, too",
        lambda at: at.lengths + _size(at) * _ends_with_a_page(at),
    ),
)
_OF_WRITES: Final[tuple[tuple[str, str, Callable[[Slots], Tensor]], ...]] = (
    ("new-keys-not-attended", "the new keys are written, but not attended", lambda at: at.held),
    (
        "new-keys-counted-twice",
        "the new keys are counted twice in the length of an item",
        lambda at: at.lengths + at.written,
    ),
)


# Where the slots behind an item end with its last page, that explains as much.
_GENERAL: Final = {"lengths-ignored": "last-page-read-whole"}


def _length_mistakes(
    entries: Iterable[tuple[str, str, Callable[[Slots], Tensor]]],
    clause: str,
    where: Callable[[Inputs], bool],
) -> list[NamedMistake]:
    return [
        mistake
        for name, sentence, change in entries
        for mistake in named(
            name, clause, needs="caches", where=where, special_of=_GENERAL.get(name, "")
        )(sentence, _BY_LENGTH, *map(_misread, _lengths(change)))
    ]


_paged: Final = partial(named, primary="paged.golden", needs="caches", where=_has_pages)

PAGED: Final[tuple[NamedMistake, ...]] = (
    *(
        mistake
        for name, sentence, reads in _OF_TABLES
        for mistake in _paged(name)(sentence, _BY_TABLE, *map(_misread, reads))
    ),
    *(
        mistake
        for name, sentence, reads in _OF_TABLES
        for mistake in _paged(f"values-by-{name}")(
            f"of values alone: {sentence}", _BY_TABLE, *map(_values_as_read, reads)
        )
    ),
    *_paged("page-size-assumed")(
        "a page is taken to have another number of slots",
        "take the number of slots from the shape of the caches",
        *(
            _misread(partial(_change_page_size, size=size, counted=counted))
            for size in _ASSUMED
            for counted in (False, True)
        ),
    ),
    *_paged("page-cut")(
        "only the first slots of a page are read, again and again",
        "go over all slots of a page",
        *(_misread(partial(_cut, size=size)) for size in _ASSUMED),
    ),
    *named("last-page-read-whole", "paged.unused-unseen", needs="caches", where=_has_caches)(
        "the last page of an item, or its cache, is attended to its end",
        "hide the slots behind the last key",
        {"inputs": _whole_pages},
        *map(_misread, _lengths(_whole)),
    ),
    *named("empty-items-shift-others", "paged.empty-sequence", needs="caches", where=_has_pages)(
        "items without keys are dropped from the table, and the next ones move up",
        "keep the row of each item, with keys or without",
        _misread(_drop_empty_items),
    ),
    *_paged("slots-for-heads")(
        "the heads of a page are read as its slots",
        "page_axes says whether slots or heads come first",
        _misread(lambda _at: {"pages": _heads_outside}),
        _misread(lambda _at: {"pages": _slots_outside}),
    ),
    *_length_mistakes(_OF_LENGTHS, "paged.golden", _has_caches),
    *_length_mistakes(_OF_PAGES, "paged.page-edges", _has_pages),
    *_length_mistakes(_OF_WRITES, "paged.golden", lambda inputs: inputs.writes),
    *named("queries-from-the-first-key", "paged.golden", needs="caches", where=_has_caches)(
        "queries stand at the first keys of an item",
        _BEHIND,
        {"inputs": _stand_at_first_key},
    ),
    *named("queries-behind-the-longest", "paged.golden", needs="caches", where=_has_caches)(
        "queries stand at the end of the longest item, or where its new keys begin",
        _BEHIND,
        _misread(lambda at: {"ends": at.lengths.max().expand(len(at.lengths))}),
        _misread(lambda at: {"ends": at.held}),
        _misread(lambda at: {"ends": at.lengths + at.written}),
    ),
)
