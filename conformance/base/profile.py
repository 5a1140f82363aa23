"""How hard a run tries: the named profiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Profile:
    """``examples`` problems a clause, of lengths up to ``longest``.

    ``reductions`` limits how often a failing problem is tried smaller, over the whole candidate,
    and ``edges`` how many hand-picked problems there are (None: all). Clauses about combinations
    ask for any ``strength`` values of different parameters together, ``turns`` times: from the
    second time on with drawn sizes and values. A profile that ``explores`` goes on with freshly
    drawn problems, round after round, for as long as the run may take.
    """

    name: str
    examples: int
    longest: int
    reductions: int
    edges: int | None = None
    strength: int = 2
    turns: int = 1
    explores: bool = False


PROFILES: Final[dict[str, Profile]] = {
    "quick": Profile(name="quick", examples=40, longest=40, reductions=400),
    "default": Profile(name="default", examples=150, longest=130, reductions=1500, strength=3),
    "thorough": Profile(
        name="thorough", examples=600, longest=513, reductions=6000, strength=3, turns=3
    ),
    "nightly": Profile(
        name="nightly", examples=150, longest=257, reductions=6000, strength=3, explores=True
    ),
}
