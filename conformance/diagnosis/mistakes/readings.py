"""Mistakes of calls that read the keys of items: which keys, how many, and where queries stand.

A part of what a call reads (pages, first keys, lengths, the end of the queries), with an operator,
for all items or for items of a kind, is a mistake. Those of the catalogue have names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from ...declare.declaration import mixed_in
from ...operators import items
from ...problems.arrangements import slots_of
from ...problems.inputs import Inputs
from ...problems.misreading import misread
from ...problems.paging import Slots
from ._steps import require
from .named_mistake import DeclaredCall, NamedMistake

BY_TABLE: Final = "page j of item i is block_table[i, j]"
BY_LENGTH: Final = "item i has cache_lengths[i] keys, and those that the call writes"
BEHIND: Final = "query i of item b stands at cache_lengths[b] - Lq + i"
_BY_ROWS: Final = "item i has the first keys of its own row, as many as cache_lengths[i] says"
_ENDS_OF_SEQUENCES: Final = "the last query of a sequence stands at its last key"
BY_OFFSETS: Final = "sequence i reaches from cu_seqlens[i] to cu_seqlens[i + 1]"
OF_PAGES: Final = ("the pages", "the pages of the values", "the pages of the keys")
# Whether the keys are read by the number, and whether queries stand behind so many.
_NUMBERS: Final = {
    "the number of keys": (True, False),
    "the length": (True, True),
    "the end of the queries": (False, True),
}
KEYS_READ: Final = ("the number of keys", "the length")
ENDS: Final = ("the end of the queries",)
# Of keys from another one on: whether the last key stays, and whether queries stand by the keys
# that are read.
_STARTS: Final = {
    "the first key": (True, False),
    "the first key that counts": (True, True),
    "the place of the keys": (False, True),
}
KEYS: Final = ("the keys",)
FIRST_KEYS: Final = ("the first key", "the first key that counts")
_OPERATORS: Final[Mapping[str, Mapping[str, items.Change]]] = {
    **dict.fromkeys(OF_PAGES, items.TABLES),
    **dict.fromkeys(_NUMBERS, items.LENGTHS | items.BY_SIZES),
    **dict.fromkeys(_STARTS, items.STARTS | items.STARTS_BY_SIZES),
    **dict.fromkeys(KEYS, items.KEYS | items.KEYS_BY_SIZES),
}


def has_pages(inputs: Inputs) -> bool:
    """Whether the keys of a call lie in pages."""
    return inputs.store is not None and bool(inputs.store.page_size)


def has_caches(inputs: Inputs) -> bool:
    """Whether the keys of a call lie in caches with lengths."""
    return inputs.store is not None


def _has_packed(inputs: Inputs) -> bool:
    return inputs.store is None and inputs.head_layout.has_sequences


def _has_rows(inputs: Inputs) -> bool:
    """Whether the keys of an item lie one after another."""
    return inputs.head_layout.has_lengths and not has_pages(inputs)


def _writes(inputs: Inputs) -> bool:
    return inputs.writes


@dataclass(frozen=True)
class Reading:
    """A part of what a call reads that is taken otherwise: ``words`` follow "the pages are"."""

    part: str
    words: str
    items: str = "each item"

    @property
    def sentence(self) -> str:
        """What is read, as a sentence."""
        verb = "are" if self.part in (*OF_PAGES, *KEYS) else "is"
        return f"{self.part} of {self.items} {verb} {self.words}"

    def part_of(self, at: Slots) -> Tensor:
        """What is read, for items of the kind: a table, numbers, or first keys and numbers."""
        concerned = items.KINDS[self.items](at)
        changed = _OPERATORS[self.part][self.words](at)
        if self.part in OF_PAGES:
            return torch.where(concerned[:, None], changed, at.table)
        if self.part in KEYS:
            return torch.where(concerned, changed, torch.stack([at.starts, at.lengths]))
        return torch.where(concerned, changed, at.starts if self.part in _STARTS else at.lengths)

    def inputs_for(self, call: DeclaredCall) -> Inputs | None:
        """The inputs of a call as they are read; None without items of different lengths."""
        inputs = call.inputs
        if not inputs.head_layout.has_lengths:
            return None
        require(mixed_in(inputs.point) is None)  # mixing depends on places of tokens
        read = self._read(inputs)
        if self.part == "the pages of the values":
            return misread(inputs).replace(value=read.value)
        if self.part == "the pages of the keys":
            return misread(inputs).replace(key=read.key)
        return read

    def _read(self, inputs: Inputs) -> Inputs:
        at = slots_of(inputs)
        require(at.total > 0)
        read = self.part_of(at)
        if self.part in OF_PAGES:
            return misread(inputs, table=read)
        if self.part in KEYS:
            return _between(inputs, read[0], read.sum(0))
        if self.part in _STARTS:
            keeps_last, counted = _STARTS[self.part]
            last = at.lengths + (at.starts if keeps_last else read)
            return _between(inputs, read, last, counted=counted)
        numbers = read.clamp(min=0, max=at.room)
        lengths, ends = _NUMBERS[self.part]
        if lengths and _has_packed(inputs):
            return _between(inputs, at.starts, at.starts + numbers, counted=ends)
        return misread(inputs, lengths=numbers if lengths else None, ends=numbers if ends else None)

    @property
    def where(self) -> Callable[[Inputs], bool]:
        """The calls that have such a part."""
        if self.words in items.OF_WRITES:
            return _writes
        of_pages = self.part in OF_PAGES or self.words in items.BY_PAGES
        if of_pages or self.items in items.KINDS_BY_PAGES:
            return has_pages
        if self.words in items.OF_SEQUENCES:
            return _has_packed
        if self.part in _STARTS or self.part in KEYS:
            return _has_rows
        return has_caches if self.words in items.OF_CACHES else _has_lengths

    def fix(self, needs: str) -> str:
        """How calls with "caches", or of "sequences", read the part."""
        if self.part in OF_PAGES:
            return BY_TABLE
        if needs == "sequences":
            return _ENDS_OF_SEQUENCES if self.part in ENDS else BY_OFFSETS
        if self.part in _STARTS or self.part in KEYS:
            return _BY_ROWS
        return BEHIND if self.part in ENDS else BY_LENGTH


def _has_lengths(inputs: Inputs) -> bool:
    return inputs.head_layout.has_lengths


def _between(inputs: Inputs, starts: Tensor, last: Tensor, *, counted: bool = True) -> Inputs:
    """Read the keys of each item from its row ``starts`` to before ``last``, within the tensor.

    ``counted``: queries stand at the last key that is read, and not where they should.
    """
    at = slots_of(inputs)
    starts = starts.clamp(0, at.total)
    lengths = (last.clamp(max=at.total) - starts).clamp(min=0)
    ends = lengths if counted else at.lengths + at.starts - starts
    return misread(inputs, starts=starts, lengths=lengths, ends=ends)


@cache
def readings() -> tuple[Reading, ...]:
    """Every part with every operator, the plainest first.

    Numbers are cut to sizes, and pages of keys or values alone taken, for all items together.
    """
    whole, *kinds = items.KINDS
    sized = {*items.BY_SIZES, *items.STARTS_BY_SIZES, *items.KEYS_BY_SIZES}
    every = [(part, words) for part, operators in _OPERATORS.items() for words in operators]
    of_kinds = [(part, words) for part, words in every if part not in OF_PAGES[1:]]
    return (
        *(Reading(*one, whole) for one in every),
        *(Reading(*one, kind) for kind, one in product(kinds, of_kinds) if one[1] not in sized),
    )


@cache
def misread_items(needs: str) -> tuple[NamedMistake, ...]:
    """Every reading of "caches" or "sequences" as a mistake, named by its sentence."""
    return tuple(
        NamedMistake(
            name=one.sentence.removeprefix("the "),
            primary="paged.golden" if needs == "caches" else "varlen.golden",
            sentence=one.sentence,
            fix=one.fix(needs),
            inputs=one.inputs_for,
            where=one.where,
            needs=needs,
        )
        for one in readings()
        if one.where not in _NOT_OF[needs]
    )


# Where no call of a layout is.
_NOT_OF: Final = {"caches": (_has_packed,), "sequences": (has_pages, has_caches, _writes)}


def reading_ways(
    parts: Iterable[str], words: str, items_: str = "each item"
) -> Iterator[dict[str, Any]]:
    """Yield the fields of mistakes that read some parts alike."""
    for part in parts:
        one = Reading(part, words, items_)
        yield {"inputs": one.inputs_for, "where": one.where}
