"""The mistakes that a failure can be named after, as data: see ``docs/mistakes.md``.

``MISTAKES`` are those that answers show, ``BACKWARD`` those of gradients alone. Entries of one name
are several ways to make the same mistake.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from ..._golden import golden
from ...base.mistake import Mistake, mistakes_in
from ...targets.loading import MISTAKE_GROUP, registered, taking_in
from .backward import ATTENTION, LAYERS, OF_CALLS, OF_OPTIONS
from .biases import BIASES, POSITIONS
from .caches import CACHES, LOST_OPTIONS
from .causality import CAUSALITY, WINDOWS
from .fills import FILLED, ROWS
from .layout import EXCHANGES, GROUPS, LAYOUT
from .masking import LENGTHS, MASKING
from .named_mistake import DeclaredCall, NamedMistake, NotExpressible, everywhere
from .projections import PROJECTIONS
from .scaling import PREPARED, SCALING
from .semantics_changes import POINTS, mistaken_conventions
from .softmaxes import SINKS, SOFTCAPS, SOFTMAXES
from .weighing import TILES, WEIGHING

MISTAKES: Final[tuple[NamedMistake, ...]] = (
    *POINTS,
    *SCALING,
    *SOFTMAXES,
    *TILES,
    *WEIGHING,
    *FILLED,
    *MASKING,
    *LENGTHS,
    *CAUSALITY,
    *WINDOWS,
    *SOFTCAPS,
    *BIASES,
    *CACHES,
    *LOST_OPTIONS,
    *ROWS,
    *LAYOUT,
    *GROUPS,
    *EXCHANGES,
    *PROJECTIONS,
    *POSITIONS,
    *SINKS,
    *PREPARED,
)
BACKWARD: Final[tuple[NamedMistake, ...]] = (*ATTENTION, *LAYERS, *OF_CALLS, *OF_OPTIONS)


def named_mistakes() -> tuple[NamedMistake, ...]:
    """The mistakes that answers show: those of this project, then those of other distributions."""
    return (*MISTAKES, *registered_mistakes())


@cache
def registered_mistakes() -> tuple[NamedMistake, ...]:
    """Every registered mistake with ``changes``; raises UsageError for one that cannot be used."""
    return tuple(
        mistake
        for point in registered(MISTAKE_GROUP)
        for mistake in taking_in(point, "mistakes", _named)
    )


def _named(value: Any) -> list[NamedMistake]:
    return [_as_named(mistake) for mistake in mistakes_in(value) if mistake.changes]


def _as_named(mistake: Mistake) -> NamedMistake:
    golden.STANDARD.replace(**mistake.changes)  # raises for what is no field, or no value of one
    return NamedMistake(**vars(mistake))


__all__ = [
    "BACKWARD",
    "MISTAKES",
    "DeclaredCall",
    "NamedMistake",
    "NotExpressible",
    "everywhere",
    "mistaken_conventions",
    "named_mistakes",
    "registered_mistakes",
]
