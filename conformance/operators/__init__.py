"""Ways to change the result of a stage, each with its words: what a mistake does to it.

An operator is usable at every stage whose axes it needs. It imports torch and the golden alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from .caches import cached
from .functions import functions
from .groups import GROUPINGS, groupings
from .keys import kinds_of_keys
from .masks import misread_masks
from .moves import layouts, moves, moves_in_one_head, sums
from .numbers import SIZES, multiples
from .operator import Operator
from .parts import parts_lost
from .places import FLAGS, places
from .roundings import roundings_below
from .softmaxes import of_one_stage
from .tables import guessed_from_values, lost_rows, mask_moves, tables

# Stages that are tables of which key a query attends, and the places that keys have for queries.
OF_TABLES = frozenset(
    "kept by_mask by_causality by_window structure admitted attended allowed empty "
    "unread_keys unread_values".split()
)
# Stages with operators that values decide on: by which of them are zero, or add up to it.
GUESSED = frozenset({"admitted", "output"})
OF_PLACES = frozenset({"positions", "ahead"})
# Stages of which models keep tables, as short numbers at times.
_OF_ROTATIONS = frozenset({"frequencies", "query_angles", "key_angles"})
# Stages of numbers that each key has for each query: zero is that of a key that is lost.
OF_SHARES = frozenset({"exponentials", "weights"})

__all__ = [
    "GROUPINGS",
    "GUESSED",
    "OF_PLACES",
    "OF_TABLES",
    "SIZES",
    "Operator",
    "functions",
    "mask_moves",
    "misread_masks",
    "moves",
    "multiples",
    "operators",
    "parts_lost",
    "roundings_below",
    "sums",
]


@cache
def operators(stage: str, axes: str, *, multiplied: bool = True) -> tuple[Operator, ...]:
    """Every operator that is usable at a stage with some axes, such as "BHQK".

    Without those that multiply by a number where a later stage is ``multiplied`` in its place.
    """
    return tuple(_operators(stage, axes, multiplied=multiplied))


@cache
def _of_axes(made: Callable[[str], Iterator[Operator]], axes: str) -> tuple[Operator, ...]:
    """The operators that all stages of some axes share."""
    return tuple(made(axes))


def _operators(stage: str, axes: str, *, multiplied: bool) -> Iterator[Operator]:
    if stage == "counted":
        yield from FLAGS
    elif stage == "shares":  # the others are those of the weights
        yield from of_one_stage(stage)
    elif stage in OF_PLACES:
        yield from places(stage)
        yield from moves(axes)
    elif stage in OF_TABLES:
        yield from tables(stage, axes)
        yield from moves(axes)
        yield from guessed_from_values() if stage == "admitted" else ()
    else:
        yield from _of_axes(functions, axes) if stage not in _OF_ROTATIONS else ()
        yield from _of_axes(multiples, axes) if multiplied else ()
        for made in (moves, sums, parts_lost, layouts):
            yield from _of_axes(made, axes)
        yield from of_one_stage(stage)
        yield from roundings_below() if stage in _OF_ROTATIONS else ()
        if stage in OF_SHARES:
            yield from kinds_of_keys("zero")
            yield from lost_rows()
        if axes[:3] == "BGK":
            yield from cached(axes)
            yield from moves_in_one_head(axes)
        if stage in ("shared_key", "shared_value"):
            yield from groupings(axes)
