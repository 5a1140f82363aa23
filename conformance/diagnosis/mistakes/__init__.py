"""The mistakes that a failure can be named after, as data: see ``docs/mistakes.md``.

``MISTAKES`` is the table. Entries of one name are several ways to make the same mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .biases import BIASES
from .caches import CACHES
from .causality import CAUSALITY
from .exchanges import EXCHANGES
from .fills import FILLED
from .groups import GROUPS
from .layout import LAYOUT
from .lengths import LENGTHS
from .lost_options import LOST_OPTIONS
from .masking import MASKING
from .named import Asked, NamedMistake, NotExpressible, everywhere, mistakes
from .points import POINTS, mistaken_conventions
from .positions import POSITIONS
from .prepared import PREPARED
from .projections import PROJECTIONS
from .registered import registered_mistakes
from .rows import ROWS
from .scaling import SCALING
from .sinks import SINKS
from .softcaps import SOFTCAPS
from .softmaxes import SOFTMAXES
from .tiles import TILES
from .weighing import WEIGHING
from .windows import WINDOWS

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
