"""Hypothesis strategies: problems for a candidate, drawn as small integers and named recipes."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .candidate import Candidate
from .geometry import Geometry
from .problem import MaskPlan, Problem
from .space import Often, Space, can_cross

# Lengths on both sides of the tile edges of blocked kernels.
TILE_EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513)
HEAD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 40, 59, 64, 72, 80, 96, 128, 160, 256)
FEW_QUERIES = 5
SHORT = 9
WIDEST_INPUT = 24
SCALES = (None, 0.25, 0.3, 1.0, 1.7)
# Mostly absent: a narrow window hides what the other options do.
SOFTCAPS = (None, None, 3.0, None, 30.0)
WINDOWS = (None, None, None, (1, 1), None, None, (3, -1), None, None, (-1, 2), None, (0, 0), (2, 0))
# Hypothesis repeats and mutates what it drew: this many times more is drawn, and the likes left out.
OVERSAMPLING = 3


@st.composite
def problems(
    draw: st.DrawFn, candidate: Candidate, space: Space, *, dtype: str, longest: int = 40
) -> Problem:
    """Problems of a space that a candidate can be called with; lengths stay below ``longest``."""
    geometry = draw(geometries(longest=longest))
    geometry = settle(geometry, candidate, space)
    return Problem(
        geometry=geometry,
        dtype=dtype,
        seed=draw(st.integers(0, 2**31 - 1)),
        values=draw(st.sampled_from(space.recipes(dtype))),
        mask=_mask(draw, candidate, space),
        causal=_flag(draw, space.causal) and candidate.declaration.causal is not None,
        biases=draw(st.integers(0, 4)) > 0,
        **_extras(draw, candidate, space),
    )


@st.composite
def geometries(draw: st.DrawFn, *, longest: int = 40) -> Geometry:
    """Geometries whose long axis is at most ``longest`` and whose other lengths stay short."""
    query_length, key_length = draw(_lengths(longest))
    num_kv_heads = draw(st.integers(1, 3))
    small = st.integers(1, 8)
    sizes = [size for size in HEAD_SIZES if size <= max(16, longest)]
    widths = [draw(st.integers(1, WIDEST_INPUT)) for _ in range(4)]
    return Geometry(
        batch=draw(st.integers(1, 3)),
        num_heads=num_kv_heads * draw(st.integers(1, 2)),
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


def settle(geometry: Geometry, candidate: Candidate, space: Space) -> Geometry:
    """The nearest geometry that the space and the candidate's declaration allow."""
    for name, least in space.least:
        geometry = geometry.replace(**{name: max(least, getattr(geometry, name))})
    geometry = _match_inputs(geometry, candidate, space)
    geometry = candidate.declaration.pins.apply(geometry)
    return _match_inputs(geometry, candidate, space)


def _match_inputs(geometry: Geometry, candidate: Candidate, space: Space) -> Geometry:
    declared = candidate.declaration
    pinned = {*declared.pins.sizes, *declared.pins.equal_to}
    if "gqa" not in declared.features and "num_kv_heads" not in pinned:
        geometry = geometry.replace(num_kv_heads=geometry.num_heads)
    elif geometry.num_heads % geometry.num_kv_heads:
        geometry = geometry.replace(num_kv_heads=1)
    if not declared.batched:
        geometry = geometry.replace(batch=1)
    if not can_cross(candidate) or space.square == "always":
        geometry = geometry.replace(query_length=geometry.key_length)
    elif space.square == "never" and geometry.query_length == geometry.key_length:
        longer = "query_length" if "key_length" in pinned else "key_length"
        geometry = geometry.replace(**{longer: geometry.key_length + 2})
    if declared.inputs == "self":
        geometry = geometry.replace(query_size=geometry.key_size)
    if declared.inputs != "separate":
        geometry = geometry.replace(value_size=geometry.key_size)
    if candidate.kind == "core":
        geometry = geometry.replace(query_size=1, key_size=1, value_size=1, output_size=1)
    if candidate.kind == "positions":
        geometry = _position_sizes(geometry, declared.max_length)
    return geometry


def _position_sizes(geometry: Geometry, max_length: int | None) -> Geometry:
    """A position encoding has one input of even width, no heads, and a longest length."""
    length = min(geometry.key_length, max_length or geometry.key_length)
    width = geometry.key_size + geometry.key_size % 2
    ones = dict.fromkeys(("num_heads", "num_kv_heads", "head_size", "value_head_size"), 1)
    widths = dict.fromkeys(("query_size", "key_size", "value_size", "output_size"), width)
    return geometry.replace(query_length=length, key_length=length, **ones, **widths)


def _flag(draw: st.DrawFn, often: Often) -> bool:
    return often in ("always", "offered") or (often == "maybe" and draw(st.booleans()))


def _mask(draw: st.DrawFn, candidate: Candidate, space: Space) -> MaskPlan | None:
    options = space.options(candidate)
    if not options or not _flag(draw, space.mask):
        return None
    form, shape = draw(st.sampled_from(options))
    return MaskPlan(
        pattern=draw(st.sampled_from(space.patterns)),
        form=form,
        shape=shape,
        finite_bias=form == "bias" and _flag(draw, space.finite_bias),
    )


def _extras(draw: st.DrawFn, candidate: Candidate, space: Space) -> dict[str, Any]:
    features = candidate.declaration.features
    extras: dict[str, Any] = {}
    if space.extras != "never" and "scale" in features:
        extras["scale"] = draw(st.sampled_from(SCALES))
    if space.extras == "maybe":
        if "softcap" in features:
            extras["softcap"] = draw(st.sampled_from(SOFTCAPS))
        if "window" in features:
            extras["window"] = draw(st.sampled_from(WINDOWS))
    return extras


def draw_problems(
    candidate: Candidate, space: Space, *, dtype: str, longest: int, count: int, seed_value: int
) -> list[Problem]:
    """``count`` problems drawn by hypothesis, the same ones for the same seed.

    A space that hypothesis exhausts sooner (everything pinned) is filled up with fresh seeds.
    """
    found: list[Problem] = []

    @seed(seed_value)
    @settings(
        max_examples=OVERSAMPLING * count,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(problems(candidate, space, dtype=dtype, longest=longest))
    def collect(problem: Problem) -> None:
        found.append(problem)

    collect()
    chosen = _diverse(found, count)
    drawn = len(chosen)
    for index in range(count - drawn):
        again = chosen[index % drawn]
        chosen.append(again.replace(seed=again.seed + 7919 * (1 + index // drawn)))
    return chosen


def _diverse(found: list[Problem], count: int) -> list[Problem]:
    """Problems of different sizes first, then those that differ in anything but the seed."""
    fresh: dict[Geometry, Problem] = {}
    for problem in found:
        fresh.setdefault(problem.geometry, problem)
    others: dict[Problem, Problem] = {}
    for problem in found:
        if fresh[problem.geometry] is not problem:
            others.setdefault(problem.replace(seed=0), problem)
    return [*fresh.values(), *others.values()][:count]
