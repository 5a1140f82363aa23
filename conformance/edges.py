"""Hand-picked edge problems: a fixed set that every clause tries before random ones.

They run outside hypothesis, which does not shrink explicit examples; failures are reduced by
:mod:`conformance.reduction` like the others.
"""

from __future__ import annotations

from typing import Final

from .candidate import Candidate
from .geometry import Geometry
from .problem import MaskPlan, Problem
from .space import Space
from .strategies import SCALES, SOFTCAPS, WINDOWS, settle

# batch, heads, kv heads, query length, key length, head size, value head size, widths
_SIZES: Final = (
    (2, 3, 3, 5, 7, 4, 6, 11, 13, 9, 10),  # every axis of another size
    (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),  # nothing but ones
    (3, 3, 3, 3, 3, 3, 3, 9, 9, 9, 9),  # every axis of one size: what inequality hides
    (2, 4, 2, 6, 6, 2, 2, 8, 8, 8, 8),  # square scores, grouped heads
    (4, 2, 1, 4, 9, 5, 3, 7, 5, 6, 4),  # batch equals query length
    (2, 2, 2, 9, 4, 8, 8, 16, 16, 16, 16),  # more queries than keys
    (1, 2, 2, 2, 33, 3, 5, 6, 6, 6, 6),  # a key past a tile edge
    (1, 2, 1, 17, 3, 7, 1, 5, 3, 4, 2),  # a query past a tile edge
    (3, 1, 1, 1, 8, 16, 2, 12, 4, 3, 5),  # one query
    (2, 3, 3, 8, 2, 1, 4, 3, 8, 2, 6),  # head size one
)


def edge_problems(candidate: Candidate, space: Space, *, dtype: str) -> list[Problem]:
    """The edge problems of a space, each with another recipe, mask option and pattern in turn."""
    recipes, options = space.recipes(dtype), space.options(candidate)
    edges = []
    for index, sizes in enumerate(_SIZES):
        geometry = settle(_geometry(sizes), candidate, space)
        plan = _plan(index, options, space)
        causal = space.causal in ("always", "offered") or (space.causal == "maybe" and index % 2 == 1)
        problem = Problem(
            geometry=geometry,
            dtype=dtype,
            seed=index,
            values=recipes[index % len(recipes)],
            mask=plan,
            causal=causal and candidate.declaration.causal is not None,
            biases=index % 4 != 1,
        )
        edges.append(_with_extras(problem, index, candidate, space))
    return list(dict.fromkeys(edges))


def _geometry(sizes: tuple[int, ...]) -> Geometry:
    names = (
        "batch num_heads num_kv_heads query_length key_length head_size value_head_size "
        "query_size key_size value_size output_size"
    ).split()
    return Geometry(**dict(zip(names, sizes, strict=True)))


def _plan(index: int, options: list[tuple[str, str]], space: Space) -> MaskPlan | None:
    if not options or space.mask == "never" or (space.mask == "maybe" and index % 3 == 2):  # noqa: PLR2004
        return None
    form, shape = options[index % len(options)]
    finite = form == "bias" and (
        space.finite_bias == "always" or (space.finite_bias == "maybe" and index % 2 == 0)
    )
    pattern = space.patterns[index % len(space.patterns)]
    return MaskPlan(pattern=pattern, form=form, shape=shape, finite_bias=finite)


def _with_extras(problem: Problem, index: int, candidate: Candidate, space: Space) -> Problem:
    features = candidate.declaration.features
    if space.extras != "never" and "scale" in features:
        problem = problem.replace(scale=SCALES[index % len(SCALES)])
    if space.extras == "maybe" and "softcap" in features:
        problem = problem.replace(softcap=SOFTCAPS[index % len(SOFTCAPS)])
    if space.extras == "maybe" and "window" in features:
        problem = problem.replace(window=WINDOWS[index % len(WINDOWS)])
    return problem
