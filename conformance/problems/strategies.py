"""Drafts of problems, before they meet a candidate, and the strategies that draw them.

A draft is a few small integers and named recipes: hypothesis draws it once for all clauses.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from .caching import CACHED, NO_CACHE, cached_length, draws_cache
from .fitting import causal_flag, draft_geometry, either_or, one_at_a_time
from .problem import MaskPlan, Problem
from .space import Often, Space

SCALES = (None, 0.25, 0.3, 1.0, 1.7)
# Mostly absent: a narrow window hides what the other options do.
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
    """Sizes as drawn, and choices as integers that each space takes modulo what it offers."""

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
        # The form first: one that comes in a single shape is drawn as often as the others.
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
        # Digits of one number: each option is chosen apart from the others.
        if space.extras != "never" and "scale" in features:
            extras["scale"] = SCALES[self.extras % len(SCALES)]
        if space.extras == "maybe" and "softcap" in features:
            extras["softcap"] = SOFTCAPS[self.extras // len(SCALES) % len(SOFTCAPS)]
        if space.extras == "maybe" and "window" in features:
            both = len(SCALES) * len(SOFTCAPS)
            extras["window"] = WINDOWS[self.extras // both % len(WINDOWS)]
        return extras

    def _has_sinks(self, candidate: Candidate, space: Space) -> bool:
        """A digit beyond those of all other options: what does not offer sinks draws the same."""
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
# Hypothesis repeats and mutates what it drew: this many times more is drawn, and the likes dropped.
OVERSAMPLING = 3
# At least so many drafts are drawn, and twice as many where these are not enough.
FEW_DRAFTS = 10
# Choices are compared modulo this: as many as a space offers of most things. Of more (20 forms and
# shapes of masks, say) a clause may miss some; numerics.options is given every one.
VARIETY = 12


def drafts(*, longest: int = 40) -> st.SearchStrategy[Draft]:
    """Drafts of problems: sizes, a seed and choices that shrink as integers."""
    choice = st.integers(0, CHOICES)
    return st.builds(
        Draft,
        geometry=geometries(longest=longest),
        seed=st.integers(0, 2**31 - 1),
        values=choice,
        option=choice,
        pattern=choice,
        masked=st.booleans(),
        causal=st.booleans(),
        finite_bias=st.booleans(),
        biases=st.integers(0, 4).map(bool),
        extras=choice,
    )


@st.composite
def geometries(draw: st.DrawFn, *, longest: int = 40) -> Geometry:
    """Geometries whose long axis is at most ``longest`` and whose other lengths stay short."""
    query_length, key_length = draw(_lengths(longest))
    num_kv_heads = draw(st.integers(1, 3))
    small = st.integers(1, 8)
    sizes = [size for size in HEAD_SIZES if size <= max(WIDE, longest)]
    widths = [draw(st.integers(1, WIDEST_INPUT)) for _ in range(4)]
    return Geometry(
        batch=draw(st.sampled_from((1, 2, 3, 2, 5))),
        num_heads=num_kv_heads * draw(st.sampled_from((1, 1, 2, 3, 4))),
        num_kv_heads=num_kv_heads,
        query_length=query_length,
        key_length=key_length,
        head_size=draw(small | st.sampled_from(sizes)),
        value_head_size=draw(small | st.sampled_from(sizes)),
        query_size=widths[0],
        key_size=widths[1],
        value_size=widths[2],
        output_size=widths[3],
    )


def _lengths(longest: int) -> st.SearchStrategy[tuple[int, int]]:
    edges = [length for length in TILE_EDGES if length <= longest] or [longest]
    short, few, edge = st.integers(1, SHORT), st.integers(1, FEW_QUERIES), st.sampled_from(edges)
    square = st.integers(1, SHORT).map(lambda length: (length, length))
    return (
        st.tuples(short, short)
        | square
        | st.tuples(few, edge)
        | st.tuples(edge, few)
        | st.tuples(short, short)
    )


def first_drafts(*, longest: int, count: int, seed_value: int) -> tuple[Draft, ...]:
    """The first drafts of a seed: those of a smaller count are the start of those of a larger one.

    Drawing is dear: clauses that want a few take the first of what others want more of.
    """
    whole = FEW_DRAFTS
    while whole < count:
        whole *= 2
    return draw_drafts(longest=longest, count=whole, seed_value=seed_value)[:count]


@lru_cache(maxsize=16)
def draw_drafts(*, longest: int, count: int, seed_value: int) -> tuple[Draft, ...]:
    """``count`` drafts drawn by hypothesis, the same ones for the same seed."""
    collected: list[Draft] = []

    @seed(seed_value)
    @settings(
        max_examples=OVERSAMPLING * count,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drafts(longest=longest))
    def collect(draft: Draft) -> None:
        collected.append(draft)

    with _heedless_of_modules():
        collect()
    return tuple(_diverse(collected, count))


@contextmanager
def _heedless_of_modules() -> Iterator[None]:
    """Keep hypothesis from drawing the constants in the source of modules that are loaded.

    The same seed draws the same beside any module; none is read, parsed, or loaded where it is
    lazy.
    """
    # Where newer versions read modules: the function that does, and what was found by it.
    own = vars(sys.modules.get("hypothesis.internal.conjecture.providers", st))
    alone: dict[str, Any] = {"_get_local_constants": own.get("Constants"), "CONSTANTS_CACHE": {}}
    before = {name: own[name] for name in alone if name in own}
    own.update((name, alone[name]) for name in before)
    try:
        yield
    finally:
        own.update(before)


def _diverse(collected: list[Draft], count: int) -> list[Draft]:
    """``count`` drafts, each the one with the most features that those before it do not have."""
    rest = {draft: frozenset(_features(draft)) for draft in dict.fromkeys(collected)}
    chosen: list[Draft] = []
    features: frozenset[tuple[object, ...]] = frozenset()
    while rest and len(chosen) < count:
        best = max(rest, key=lambda draft: len(rest[draft] - features))
        features |= rest.pop(best)
        chosen.append(best)
    return chosen


def _features(draft: Draft) -> Iterator[tuple[object, ...]]:
    """What makes a draft unlike another: its sizes alone and in pairs, and its choices."""
    sizes = draft.geometry
    yield ("lengths", sizes.query_length, sizes.key_length)
    yield ("heads", sizes.num_heads, sizes.num_kv_heads, sizes.batch)
    for name in ("query_length", "key_length", "head_size", "value_head_size", "key_size"):
        yield (name, getattr(sizes, name))
    yield ("values", draft.values % VARIETY)
    yield ("mask", draft.option % VARIETY, draft.masked, draft.causal)
    yield ("pattern", draft.pattern % VARIETY)


def draw_problems(
    candidate: Candidate, space: Space, *, dtype: str, longest: int, count: int, seed_value: int
) -> list[Problem]:
    """``count`` problems of a space, the same ones for the same seed, each only once.

    What a candidate's own geometry function makes outside the space is replaced by others with
    fresh seeds; there are none when it always does.
    """
    drawn: list[Problem] = []
    for draft in first_drafts(longest=longest, count=count, seed_value=seed_value):
        problem = draft.problem(candidate, space, dtype=dtype)
        if space.admits(problem, candidate):
            drawn.append(_another(problem, drawn))
    for index in range(count - len(drawn) if drawn else 0):
        drawn.append(_another(drawn[index], drawn))
    return drawn


def _another(problem: Problem, drawn: list[Problem]) -> Problem:
    """The problem, with another seed if it is drawn already: pinned sizes make drafts alike."""
    while problem in drawn:
        problem = problem.replace(seed=problem.seed + 1)
    return problem
