"""The mistakes that a failure can be named after, as data: see ``docs/mistakes.md``.

``MISTAKES`` is the table. Entries of one name are several ways to make the same mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .biases import BIASES, POSITIONS
from .caches import CACHES, LOST_OPTIONS
from .causality import CAUSALITY, WINDOWS
from .fills import FILLED, ROWS
from .layout import EXCHANGES, GROUPS, LAYOUT
from .masking import LENGTHS, MASKING
from .named import Asked, NamedMistake, NotExpressible, everywhere, mistakes
from .points import POINTS, mistaken_conventions
from .projections import PROJECTIONS
from .registered import registered_mistakes
from .scaling import PREPARED, SCALING
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


def named_mistakes(more: Iterable[NamedMistake] = ()) -> tuple[NamedMistake, ...]:
    """What ships with this project, what others have registered, and what is given."""
    return (*MISTAKES, *registered_mistakes(), *more)


__all__ = [
    "MISTAKES",
    "Asked",
    "NamedMistake",
    "NotExpressible",
    "everywhere",
    "mistaken_conventions",
    "mistakes",
    "named_mistakes",
    "registered_mistakes",
]
