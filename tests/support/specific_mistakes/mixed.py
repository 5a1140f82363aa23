"""What casts silently."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific

MIXED: Final[Specific] = {
    "mixed.autocast": ("UnscaledUnderAutocast", NOTHING_ELSE),
    "mixed.inputs": ("CastThoughRefused", NOTHING_ELSE),
    "mixed.mask-dtype": ("MaskCastToHalf", NOTHING_ELSE),
    "mixed.undeclared-inputs": ("CastToTheNarrowest", NOTHING_ELSE),
}
