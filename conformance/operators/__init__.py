"""Operators: changes of the result of a stage, with their words, as mistakes make them.

An operator fits every stage with the axes that it needs. The package imports only torch and the
golden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from .caches import cached
from .functions import functions
from .groups import GROUPINGS, groupings
from .keys import kinds_of_keys
from .masks import misread_masks
from .moves import layouts, main_orders, moves, moves_in_one_head, sums
from .numbers import SIZES, multiples
from .operator import Operator
from .parts import parts_lost
from .places import FLAGS, places
from .roundings import roundings_below
from .softmaxes import stage_operators
from .tables import guessed_from_values, lost_rows, mask_moves, tables

# Stages that are tables of the keys attended by a query.
OF_TABLES = frozenset(
    "kept by_mask by_causality by_window structure admitted attended allowed empty "
    "unread_keys unread_values".split()
)
# Stages with operators that depend on values which are zero or add up to zero.
GUESSED = frozenset({"admitted", "output"})
OF_PLACES = frozenset({"positions", "ahead"})
# Stages of which models keep tables, as short numbers at times.
_OF_ROTATIONS = frozenset({"frequencies", "query_angles", "key_angles"})
# Stages with a number for each query and key: zero for a lost key.
OF_SHARES = frozenset({"exponentials", "weights"})

__all__ = [
    "GROUPINGS",
    "GUESSED",
    "OF_PLACES",
    "OF_TABLES",
    "SIZES",
    "Operator",
    "functions",
    "main_orders",
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
    """Return every operator for a stage with the given axes, such as "BHQK".

    Multiples are left out unless ``multiplied``: a later stage has them instead.
    """
    return tuple(_operators(stage, axes, multiplied=multiplied))


@cache
def _cached_operators(made: Callable[[str], Iterator[Operator]], axes: str) -> tuple[Operator, ...]:
    return tuple(made(axes))


def _operators(stage: str, axes: str, *, multiplied: bool) -> Iterator[Operator]:
    if stage == "counted":
        yield from FLAGS
    elif stage == "shares":  # further operators are those of the weights
        yield from stage_operators(stage)
    elif stage in OF_PLACES:
        yield from places(stage)
        yield from moves(axes)
    elif stage in OF_TABLES:
        yield from tables(stage, axes)
        yield from moves(axes)
        yield from guessed_from_values() if stage == "admitted" else ()
    else:
        yield from _cached_operators(functions, axes) if stage not in _OF_ROTATIONS else ()
        yield from _cached_operators(multiples, axes) if multiplied else ()
        for made in (moves, sums, parts_lost, layouts):
            yield from _cached_operators(made, axes)
        yield from stage_operators(stage)
        yield from roundings_below() if stage in _OF_ROTATIONS else ()
        if stage in OF_SHARES:
            yield from kinds_of_keys("zero")
            yield from lost_rows()
        if axes[:3] == "BGK":
            yield from cached(axes)
            yield from moves_in_one_head(axes)
        if stage in ("shared_key", "shared_value"):
            yield from groupings(axes)
