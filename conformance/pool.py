"""The problems of a run: hand-picked edges, then drawn ones, shared by all clauses of a space."""

from __future__ import annotations

import math
from typing import Final

from .candidate import Candidate
from .edges import edge_problems
from .problem import Problem
from .profile import Profile
from .space import Space
from .strategies import draw_problems

# The part of the examples for each further dtype.
OTHER_DTYPES: Final = 0.5
# The part that is drawn at least, however many edges there are.
LEAST_DRAWN: Final = 0.25
# How many further problems are offered where none of the first could tell right from wrong.
FURTHER: Final = 8
# Between the seeds of two turns: far more than between those of two days.
TURN: Final = 1_000_000_007


class Pool:
    """Problems by space and dtype; clauses of one space see the same, so goldens are shared."""

    def __init__(
        self, candidate: Candidate, profile: Profile, seed: int, *, leading: str = ""
    ) -> None:
        self._candidate = candidate
        self._profile = profile
        self._seed = seed
        self._leading = leading
        self._known: dict[tuple[Space, str], list[Problem]] = {}

    def problems(self, space: Space, dtype: str, device: str = "cpu") -> list[Problem]:
        """The problems of a space: at least as many as the profile asks for.

        The leading dtype, which is the one asked for first if none was named, gets them all: most
        mistakes show in every dtype. Each device gets the same.
        """
        self._leading = self._leading or dtype
        key = (space, dtype)
        if key not in self._known:
            self._known[key] = self._draw(space, dtype)
        if device == "cpu":
            return self._known[key]
        return [problem.replace(device=device) for problem in self._known[key]]

    def further(self, space: Space, dtype: str, device: str = "cpu") -> list[Problem]:
        """A few other problems of a space, for a clause whose examples happened not to bind."""
        asked = set(self.problems(space, dtype, device))
        drawn = draw_problems(
            self._candidate,
            space,
            dtype=dtype,
            longest=self._profile.longest,
            count=FURTHER,
            seed_value=self._seed + 1,
        )
        edges = edge_problems(self._candidate, space, dtype=dtype)
        placed = [problem.replace(device=device) for problem in [*edges[:FURTHER], *drawn]]
        return [problem for problem in dict.fromkeys(placed) if problem not in asked]

    def drawn(self, space: Space, dtype: str, device: str = "cpu", *, turn: int) -> list[Problem]:
        """As many problems as the profile asks for, all drawn: each turn has a seed of its own."""
        found = draw_problems(
            self._candidate,
            space,
            dtype=dtype,
            longest=self._profile.longest,
            count=max(1, self._wanted(space, dtype)),
            seed_value=self._seed + turn * TURN,
        )
        return [problem.replace(device=device) for problem in found]

    def _wanted(self, space: Space, dtype: str) -> int:
        part = 1.0 if dtype == self._leading else OTHER_DTYPES
        return round(self._profile.examples * space.share * part)

    def _draw(self, space: Space, dtype: str) -> list[Problem]:
        wanted = self._wanted(space, dtype)
        most = self._profile.edges
        if space.share < 1.0 and space.edges == "sizes":
            # A part of each: edges alone are the same in every run.
            most = wanted // 2 if most is None else min(most, wanted // 2)
        edges = edge_problems(self._candidate, space, dtype=dtype, most=most)
        drawn = draw_problems(
            self._candidate,
            space,
            dtype=dtype,
            longest=self._profile.longest,
            count=max(wanted - len(edges), math.ceil(LEAST_DRAWN * wanted), 1),
            seed_value=self._seed,
        )
        return edges + drawn
