"""Hand-picked edge problems: a fixed set that every clause tries before random ones.

They run outside hypothesis, which does not shrink explicit examples; failures are reduced by
:mod:`conformance.reduction` like the others.
"""

from __future__ import annotations

from typing import Final

from .candidate import Candidate
from .draft import Draft
from .geometry import FIELDS, Geometry
from .problem import Problem
from .space import Space, can_cross

# Sizes in the order of Geometry's fields: batch, heads, key/value heads, query and key length, head
# size, value head size, and the widths of query, key, value and output.
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
    (1, 2, 2, 7, 5, 20, 59, 6, 4, 5, 3),  # heads past the edges of vectors
    (1, 2, 2, 5, 6, 59, 20, 4, 6, 3, 5),  # the same with large keys
)
# Asked where few queries may see many keys: a key past every tile edge.
_LONG: Final = (1, 2, 2, 2, 257, 4, 4, 5, 6, 7, 4)


def edge_problems(candidate: Candidate, space: Space, *, dtype: str) -> list[Problem]:
    """The edge problems of a space, each with another recipe, mask option and pattern in turn."""
    sizes = (*_SIZES, _LONG) if space.square != "always" and can_cross(candidate) else _SIZES
    found = [draft.problem(candidate, space, dtype=dtype) for draft in _drafts(sizes)]
    return [problem for problem in dict.fromkeys(found) if space.admits(problem, candidate)]


def _drafts(every: tuple[tuple[int, ...], ...]) -> list[Draft]:
    return [
        Draft(
            geometry=Geometry(**dict(zip(FIELDS, sizes, strict=True))),
            seed=index,
            values=index,
            option=index,
            pattern=index,
            masked=index % 3 < 2,  # noqa: PLR2004 (two of three)
            causal=index % 2 == 1,
            finite_bias=index % 2 == 0,
            biases=index % 4 != 1,
            extras=index,
        )
        for index, sizes in enumerate(every)
    ]
