"""The mistakes that a failure can be named after, as data: see ``docs/mistakes.md``.

``MISTAKES`` is the table. Entries of one name are several ways to make the same mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .layout import LAYOUT
from .masking import MASKING
from .named import Asked, NamedMistake, NotExpressible, everywhere, mistakes
from .points import POINTS
from .projections import PROJECTIONS
from .registered import registered_mistakes
from .rows import ROWS
from .scaling import SCALING
from .softmaxes import SOFTMAXES
from .structure import STRUCTURE

MISTAKES: Final[tuple[NamedMistake, ...]] = (
    *POINTS,
    *SCALING,
    *SOFTMAXES,
    *MASKING,
    *STRUCTURE,
    *ROWS,
    *LAYOUT,
    *PROJECTIONS,
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
    "mistakes",
    "named_mistakes",
    "registered_mistakes",
]
