"""What a whole model is asked at once, and the letters of its answers' axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..graphs.protocol import Array

# Runs with weights nudged by one unit in the last place, to see how far answers lie apart.
NUDGES: Final = (1, 2)
# The letters of an answer's axes: item, first and second sequence, anything else.
ITEM, PADDED, ATTENDING, OTHER = "B", "P", "A", "."


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelCall:
    """What a model is asked at once.

    keep
        bool ``[B, L]``: which tokens of the padded sequence exist.
    lengths
        Of the padded sequence and of the one that attends to it; equal where there is only one.
    """

    feeds: Mapping[str, Array]
    keep: Array
    lengths: tuple[int, int]

    @property
    def batch(self) -> int:
        """The number of items."""
        return int(self.keep.shape[0])
