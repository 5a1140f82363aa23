"""What goes wrong with positions."""

from __future__ import annotations

from typing import Final

from .consequences import NOTHING_ELSE, Specific, also

POSITION: Final[Specific] = {
    "position.breaks-equivariance": ("PositionsForgotten", NOTHING_ELSE),
    "position.formula": ("PositionsFromOne", NOTHING_ELSE),
    "position.relative-shift": (
        "PositionsOverLength",
        also("cache.decode-equals-full groups.golden position.formula"),
    ),
}
