"""Drafts of problems, before they meet a candidate, and how they are drawn.

A draft is a few small integers and named recipes, drawn once for all clauses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Any

from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from .caching import CACHED, NO_CACHE, cached_length, draws_cache
from .fitting import causal_flag, draft_geometry, either_or, one_at_a_time
from .problem import MaskPlan, Problem
from .space import Often, Space

SCALES = (None, 0.25, 0.3, 1.0, 1.7)
# Mostly absent: a narrow window hides the effects of other options.
SOFTCAPS = (None, None, 3.0, None, 30.0)
WINDOWS = (None, None, None, (1, 1), None, None, (3, -1), None, None, (-1, 2), None, (0, 0), (2, 0))

# Whether heads have sinks.
SINKS = (False, True)
# How much of the keys is cached: see caching.CACHED.
PASTS = (
    NO_CACHE,
    "all keys but as many as queries",
    NO_CACHE,
    "the larger half of the keys",
    "all keys but one",
)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Drawn sizes, and choices as integers, taken modulo the options that a space offers."""

    geometry: Geometry
    seed: int
    values: int
    option: int
    pattern: int
    masked: bool
    causal: bool
    finite_bias: bool
    biases: bool
    extras: int

    def problem(self, candidate: Candidate, space: Space, *, dtype: str) -> Problem:
        """The problem of a space that this draft becomes for a candidate."""
        recipes = space.recipes(dtype, candidate)
        problem = Problem(
            geometry=draft_geometry(self.geometry, candidate, space),
            dtype=dtype,
            seed=self.seed,
            values=recipes[self.values % len(recipes)],
            mask=self._mask(candidate, space),
            causal=causal_flag(candidate, flagged=_decide(space.causal, drawn=self.causal)),
            biases=self.biases,
            **self._extras(candidate, space),
            sinks=self._has_sinks(candidate, space),
        )
        if not space.gives_both:
            problem = one_at_a_time(problem, candidate)
        return self._with_past(problem, candidate, space)

    def _mask(self, candidate: Candidate, space: Space) -> MaskPlan | None:
        options = space.options(candidate)
        if not options or not _decide(space.mask, drawn=self.masked):
            return None
        if space.causal == "always" and not space.gives_both and either_or(candidate):
            return None
        # The form first: a form with a single shape is drawn as often as others.
        forms = list(dict.fromkeys(form for form, _ in options))
        form = forms[self.option % len(forms)]
        shapes = [shape for name, shape in options if name == form]
        shape = shapes[self.option // len(forms) % len(shapes)]
        return MaskPlan(
            pattern=space.patterns[self.pattern % len(space.patterns)],
            form=form,
            shape=shape,
            finite_bias=form == "bias" and _decide(space.finite_bias, drawn=self.finite_bias),
        )

    def _extras(self, candidate: Candidate, space: Space) -> dict[str, Any]:
        features = candidate.declaration.features
        extras: dict[str, Any] = {}
        # Digits of one number: each option is chosen independently.
        if space.extras != "never" and "scale" in features:
            extras["scale"] = SCALES[self.extras % len(SCALES)]
        if space.extras == "maybe" and "softcap" in features:
            extras["softcap"] = SOFTCAPS[self.extras // len(SCALES) % len(SOFTCAPS)]
        if space.extras == "maybe" and "window" in features:
            both = len(SCALES) * len(SOFTCAPS)
            extras["window"] = WINDOWS[self.extras // both % len(WINDOWS)]
        return extras

    def _has_sinks(self, candidate: Candidate, space: Space) -> bool:
        """A digit beyond those of all other options: candidates without sinks draw the same."""
        if space.extras != "maybe" or "sinks" not in candidate.declaration.features:
            return False
        digits = len(SCALES) * len(SOFTCAPS) * len(WINDOWS) * len(PASTS)
        return SINKS[self.extras // digits % len(SINKS)]

    def _with_past(self, problem: Problem, candidate: Candidate, space: Space) -> Problem:
        """Some of the keys cached, where caches are offered; a digit beyond those of the extras."""
        if space.extras != "maybe" or not draws_cache(candidate):
            return problem
        digits = len(SCALES) * len(SOFTCAPS) * len(WINDOWS)
        past = CACHED[PASTS[self.extras // digits % len(PASTS)]](problem.geometry)
        return problem.replace(past=cached_length(problem.replace(past=past), candidate))


def _decide(often: Often, *, drawn: bool) -> bool:
    return often in ("always", "offered") or (often == "maybe" and drawn)


# Lengths on both sides of the tile edges of blocked kernels.
TILE_EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513)
HEAD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 40, 59, 64, 72, 80, 96, 128, 160, 256)
FEW_QUERIES = 5
# Head sizes up to this are drawn whatever the lengths.
WIDE = 64
SHORT = 9
WIDEST_INPUT = 24
CHOICES = 2**16
# Of drafts: whether a mask or a causal flag is given; whether projections have biases.
HALF = 0.5
MOSTLY = 0.8
# Clauses choose among a few things by a seed's remainder: all are met where those of this are.
CHOSEN_BY_SEED = 12
# The number of drafts for each wanted problem, and the most drafts beyond the wanted number.
OVERSAMPLING = 6
MOST_BEYOND = 60
# Lengths and head sizes up to one of these bounds are alike: one, a part of a tile, several tiles.
ALIKE = (1, 16, 32, 64, 128)


def draw_draft(random: Random, *, longest: int = 40) -> Draft:
    """A draft whose long axis is at most ``longest``."""
    return Draft(
        geometry=draw_geometry(random, longest=longest),
        seed=random.randrange(2**31),
        values=random.randrange(CHOICES),
        option=random.randrange(CHOICES),
        pattern=random.randrange(CHOICES),
        masked=random.random() < HALF,
        causal=random.random() < HALF,
        finite_bias=random.random() < HALF,
        biases=random.random() < MOSTLY,
        extras=random.randrange(CHOICES),
    )


def draw_geometry(random: Random, *, longest: int = 40) -> Geometry:
    """Sizes whose long axis is at most ``longest`` and whose other lengths stay short."""
    query_length, key_length = _draw_lengths(random, longest)
    num_kv_heads = random.randint(1, 3)
    sizes = [size for size in HEAD_SIZES if size <= max(WIDE, longest)]
    head_size, value_head_size = (
        random.randint(1, 8) if random.random() < HALF else random.choice(sizes) for _ in range(2)
    )
    return Geometry(
        batch=random.choice((1, 2, 3, 2, 5)),
        num_heads=num_kv_heads * random.choice((1, 1, 2, 3, 4)),
        num_kv_heads=num_kv_heads,
        query_length=query_length,
        key_length=key_length,
        head_size=head_size,
        value_head_size=value_head_size,
        query_size=random.randint(1, WIDEST_INPUT),
        key_size=random.randint(1, WIDEST_INPUT),
        value_size=random.randint(1, WIDEST_INPUT),
        output_size=random.randint(1, WIDEST_INPUT),
    )


def _draw_lengths(random: Random, longest: int) -> tuple[int, int]:
    """Lengths of queries and keys: both short, equal, one near a tile edge, or a single token."""
    edge = random.choice([length for length in TILE_EDGES if length <= longest] or [longest])
    short, other = random.randint(1, SHORT), random.randint(1, SHORT)
    few = random.randint(1, FEW_QUERIES)
    alone = random.choice(((1, edge), (1, other), (short, 1)))
    return random.choice(((short, other), (short, short), (few, edge), (edge, few), alone))


@lru_cache(maxsize=16)
def draw_drafts(*, longest: int, count: int, seed_value: int) -> tuple[Draft, ...]:
    """``count`` drafts, determined by the seed."""
    random = Random(seed_value)  # noqa: S311 (nothing secret)
    return tuple(draw_draft(random, longest=longest) for _ in range(count))


def draw_problems(
    candidate: Candidate,
    space: Space,
    *,
    dtype: str,
    longest: int,
    count: int,
    seed_value: int,
    beside: Iterable[Problem] = (),
) -> list[Problem]:
    """``count`` distinct problems of a space, determined by the seed.

    Chosen from a larger draw for the most pairs of properties not held by the problems ``beside``
    them or by each other: mistakes that need two options, or an option and a size, are met by
    design. Problems whose sizes a candidate's own geometry function moves outside the space are
    replaced with fresh seeds; the list is empty if that always happens.
    """
    several = min(OVERSAMPLING * count, count + MOST_BEYOND)
    drafts = draw_drafts(longest=longest, count=several, seed_value=seed_value)
    every = (draft.problem(candidate, space, dtype=dtype) for draft in drafts)
    drawn = _unlike([one for one in every if space.admits(one, candidate)], count, beside)
    for index in range(count - len(drawn) if drawn else 0):
        drawn.append(_another(drawn[index], drawn))
    return drawn


def _unlike(drawn: list[Problem], count: int, beside: Iterable[Problem]) -> list[Problem]:
    """Choose ``count`` problems greedily by the most pairs of properties not yet held."""
    bits: dict[object, int] = {}

    def held(problem: Problem) -> int:
        found = 0
        for one in (*combinations(_branches(problem), 2), *_values(problem)):
            bit = bits.get(one)
            if bit is None:
                bit = bits[one] = 1 << len(bits)
            found |= bit
        return found

    known = 0
    for problem in beside:
        known |= held(problem)
    rest = {problem: held(problem) for problem in drawn}
    chosen: list[Problem] = []
    while rest and len(chosen) < count:
        best, _ = max(rest.items(), key=lambda each: (each[1] & ~known).bit_count())
        known |= rest.pop(best)
        chosen.append(best)
    return chosen


def _branches(problem: Problem) -> tuple[tuple[str, object], ...]:
    """Kinds of sizes, and options: properties that may have their own path in an implementation."""
    sizes, mask, window = problem.geometry, problem.mask, problem.window
    heads, shared = sizes.num_heads, sizes.num_kv_heads
    return (
        ("queries", bisect_left(ALIKE, sizes.query_length)),
        ("keys", bisect_left(ALIKE, sizes.key_length)),
        ("heads", (heads == 1, shared == 1, shared == heads)),
        ("items", sizes.batch == 1),
        ("mask", mask and (mask.form, mask.finite_bias)),
        ("shape of the mask", mask and mask.shape),
        ("causal", problem.causal),
        ("scale", problem.scale is None),
        ("softcap", problem.softcap is None),
        ("window", window and (window[0] < 0, window[1] < 0)),
        ("past", "all" if problem.past == sizes.key_length else bool(problem.past)),
        ("sinks", problem.sinks),
    )


def _values(problem: Problem) -> tuple[tuple[str, object], ...]:
    """Properties that combine freely: recipes and patterns, sizes of heads, order of lengths."""
    sizes, mask = problem.geometry, problem.mask
    lengths = sizes.query_length, sizes.key_length
    return (
        ("values", problem.values),
        ("choice", problem.seed % CHOSEN_BY_SEED),
        ("pattern", mask and mask.pattern),
        ("scale", problem.scale),
        ("biases", problem.biases),
        ("lengths", lengths),
        ("longer", max((0, 1), key=lengths.__getitem__)),
        ("head size", sizes.head_size),
        ("value head size", sizes.value_head_size),
    )


def _another(problem: Problem, drawn: list[Problem]) -> Problem:
    """The problem, with another seed if it is drawn already: pinned sizes make drafts alike."""
    while problem in drawn:
        problem = problem.replace(seed=problem.seed + 1)
    return problem
