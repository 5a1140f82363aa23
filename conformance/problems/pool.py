"""The problems of a run: hand-picked edges, then drawn ones, shared by all clauses of a space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from ..base.profile import Profile
from ..declare.candidate import Candidate
from .combinations import Combinations, combinations
from .edges import edge_problems, edges_in_turn
from .problem import Problem
from .space import Space
from .strategies import draw_problems

# The part of the examples for each further dtype.
OTHER_DTYPES: Final = 0.5
# The smallest drawn part, however many edges there are.
LEAST_DRAWN: Final = 0.25
# How many further problems are drawn where none of the first could show a wrong answer.
FURTHER: Final = 8
# Between the seeds of two turns: far more than between those of two days.
TURN: Final = 1_000_000_007
# A multiple of all that clauses divide a seed by.
UNFORESEEN: Final = 2520
# So many seeds of runs move the values of edges apart, whose own seeds stay far below 2 ** 42.
SEEDS_APART: Final = 2**30


class Pool:
    """Problems by space and dtype: clauses with equal spaces share problems and golden answers."""

    def __init__(
        self, candidate: Candidate, profile: Profile, seed: int, *, leading: str = ""
    ) -> None:
        self._candidate = candidate
        self._profile = profile
        self._seed = seed
        self._leading = leading
        self._edges: dict[tuple[Space, str], _Remembered] = {}
        self._combined: dict[tuple[Space, str], Combinations] = {}
        self._problems: dict[tuple[Space, str], list[Problem]] = {}

    def share(self, other: Pool) -> None:
        """Use the problems of the pool of an equal declaration, if they are drawn alike."""
        own = self._profile, self._seed, self._leading
        if own == (other._profile, other._seed, other._leading):
            self._edges, self._problems = other._edges, other._problems
            self._combined = other._combined

    def in_turn(self, space: Space, dtype: str, device: str = "cpu") -> Iterator[Problem]:
        """The problems of a space one after another, each made on demand.

        Edges come first: no problem is drawn before the edges are used up.
        """
        edges = self._edges_of(space, dtype)
        for edge in edges:
            yield _placed(edge, device)
        yield from self.problems(space, dtype, device)[len(edges.every) :]

    def count(self, space: Space, dtype: str) -> int:
        """The number of problems of a space; an estimate before they are made."""
        known = self._problems.get((space, dtype))
        return max(1, self._wanted(space, dtype)) if known is None else len(known)

    def problems(self, space: Space, dtype: str, device: str = "cpu") -> list[Problem]:
        """The problems of a space: at least as many as the profile says.

        The leading dtype, by default the first in use, gets them all: most mistakes show in every
        dtype. All devices share the problems.
        """
        key = (space, dtype)
        if key not in self._problems:
            self._problems[key] = self._draw(space, dtype)
        problems = self._problems[key]
        return problems if device == "cpu" else [_placed(one, device) for one in problems]

    def further(self, space: Space, dtype: str, device: str = "cpu") -> list[Problem]:
        """A few other problems of a space, for a clause whose examples happened not to bind."""
        first = set(self.problems(space, dtype, device))
        drawn = draw_problems(
            self._candidate,
            space,
            dtype=dtype,
            longest=self._profile.longest,
            count=FURTHER,
            seed_value=self._seed + 1,
        )
        edges = map(
            self._unforeseen, edge_problems(self._candidate, space, dtype=dtype, most=FURTHER)
        )
        placed = [_placed(problem, device) for problem in [*edges, *drawn]]
        return [problem for problem in dict.fromkeys(placed) if problem not in first]

    def drawn(self, space: Space, dtype: str, device: str = "cpu", *, turn: int) -> list[Problem]:
        """Drawn problems, as many as the profile says; each turn has its own seed."""
        problems = draw_problems(
            self._candidate,
            space,
            dtype=dtype,
            longest=self._profile.longest,
            count=max(1, self._wanted(space, dtype)),
            seed_value=self._seed + turn * TURN,
        )
        return [_placed(problem, device) for problem in problems]

    def coverage(self, space: Space, dtype: str, numbers: Iterable[int]) -> dict[str, Any] | None:
        """The coverage of a space by the problems ``numbers``, as plain data; else None."""
        if space.edges != "combinations":
            return None
        self._leading = self._leading or dtype
        made = self._combinations(space, dtype)
        return made.coverage([number for number in numbers if number < len(made.problems)])

    def _combinations(self, space: Space, dtype: str) -> Combinations:
        key = (space, dtype)
        if key not in self._combined:
            self._combined[key] = combinations(
                self._candidate, space, dtype=dtype, strength=self._strength(space, dtype)
            )
        return self._combined[key]

    def _strength(self, space: Space, dtype: str) -> int:
        """Full in the leading dtype: most interactions show in every dtype.

        Gradients cost several answers: further dtypes get one step less of them.
        """
        full = self._profile.strength
        if dtype == self._leading:
            return full
        return max(full - 1, 1) if space.purpose == "gradients" else min(2, full)

    def _wanted(self, space: Space, dtype: str) -> int:
        part = 1.0 if dtype == self._leading else OTHER_DTYPES
        return round(self._profile.examples * space.share * part)

    def _turned(self, space: Space, dtype: str) -> Iterator[Problem]:
        """The combinations again with drawn values, as often as the profile says."""
        if space.edges != "combinations" or self._profile.turns == 1 or dtype != self._leading:
            return
        for turn in range(1, self._profile.turns):
            for problem in self._combinations(space, dtype).problems:
                yield with_other_values(problem, self._seed + turn * TURN)

    def _edges_of(self, space: Space, dtype: str) -> _Remembered:
        """The problems that are not drawn, in order."""
        self._leading = self._leading or dtype
        if (space, dtype) not in self._edges:
            wanted = self._wanted(space, dtype)
            # Of combinations a part would leave pairs of options out.
            most = None if space.edges == "combinations" else self._profile.edges
            if space.share < 1.0 and space.edges == "sizes":
                # A part of each: edges alone are equal in every run.
                most = wanted // 2 if most is None else min(most, wanted // 2)
            if self._profile.most is not None:
                limit = self._profile.most
                most = limit if most is None else min(max(most, 1), limit)
            self._edges[space, dtype] = _Remembered(partial(self._make_edges, space, dtype, most))
        return self._edges[space, dtype]

    def _make_edges(self, space: Space, dtype: str, most: int | None) -> Iterator[Problem]:
        strength = self._strength(space, dtype)
        edges = edges_in_turn(self._candidate, space, dtype=dtype, strength=strength)
        every = itertools.chain(itertools.islice(edges, most), self._turned(space, dtype))
        return map(self._unforeseen, every)

    def _draw(self, space: Space, dtype: str) -> list[Problem]:
        edges, wanted = self._edges_of(space, dtype).every, self._wanted(space, dtype)
        if edges and self._profile.most is not None:
            return edges
        drawn = draw_problems(
            self._candidate,
            space,
            dtype=dtype,
            longest=self._profile.longest,
            count=max(wanted - len(edges), math.ceil(LEAST_DRAWN * wanted), 1),
            seed_value=self._seed,
            beside=edges,
        )
        return [*edges, *drawn]

    def _unforeseen(self, edge: Problem) -> Problem:
        """Derive a problem's values from the run's seed, too, where they must stay unknown.

        Sizes, options and choices by the remainder of the seed stay.
        """
        if not self._candidate.isolated:
            return edge
        return edge.replace(seed=edge.seed + UNFORESEEN * (self._seed % SEEDS_APART))


class _Remembered:
    """Problems made on demand, each once.

    ``make`` starts the production, and is called again after an interruption.
    """

    def __init__(self, make: Callable[[], Iterator[Problem]]) -> None:
        self._make = make
        self._left = make()
        self._made: list[Problem] = []

    def __iter__(self) -> Iterator[Problem]:
        for number in itertools.count():
            if number == len(self._made):
                self._make_more(1)
            if number == len(self._made):
                return
            yield self._made[number]

    @property
    def every(self) -> list[Problem]:
        """All of them."""
        self._make_more(None)
        return self._made

    def _make_more(self, most: int | None) -> None:
        try:
            self._made += itertools.islice(self._left, most)
        except BaseException:
            self._left = itertools.islice(self._make(), len(self._made), None)
            raise


def _placed(problem: Problem, device: str) -> Problem:
    return problem if problem.device == device else problem.replace(device=device)


def with_other_values(problem: Problem, seed: int) -> Problem:
    """New random values, and a new scale and cap where the combination has them."""
    draw = Random(seed + problem.seed)  # noqa: S311 (nothing secret)
    return problem.replace(
        seed=draw.randrange(2**31),
        scale=None if problem.scale is None else round(draw.uniform(0.05, 2.0), 3),
        softcap=None if problem.softcap is None else round(draw.uniform(0.5, 40.0), 3),
    )
