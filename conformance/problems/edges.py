"""Hand-picked edge problems: a fixed set that every clause tries before random problems.

Failures are reduced by :mod:`conformance.running.shrinking.reduction`, as everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from ..base.geometry import FIELDS, Geometry
from ..declare.candidate import Candidate
from .combinations import combinations_in_turn
from .problem import Problem
from .space import Space, can_cross, stays_even
from .strategies import Draft

# Sizes in the order of Geometry's fields: batch, heads, key/value heads, query and key length, head
# size, value head size, and the widths of query, key, value and output. Clauses with few examples
# take the first of them alone.
_SIZES: Final = (
    (2, 3, 3, 5, 7, 4, 6, 11, 13, 9, 10),  # every axis of another size
    (3, 3, 3, 3, 3, 3, 3, 9, 9, 9, 9),  # every axis of one size: what inequality hides
    (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),  # nothing but ones
    (2, 4, 2, 6, 6, 2, 2, 8, 8, 8, 8),  # square scores, grouped heads
    (4, 2, 1, 4, 9, 5, 3, 7, 5, 6, 4),  # batch equals query length
    (2, 2, 2, 9, 4, 8, 8, 16, 16, 16, 16),  # more queries than keys; batch equals heads
    (1, 2, 2, 2, 33, 3, 5, 6, 6, 6, 6),  # a key past a tile edge
    (1, 2, 1, 17, 3, 7, 1, 5, 3, 4, 2),  # a query past a tile edge
    (2, 3, 3, 8, 2, 1, 4, 3, 8, 2, 6),  # head size one
    (3, 4, 2, 1, 8, 16, 2, 12, 4, 3, 5),  # one query, grouped heads
    (1, 2, 2, 7, 5, 20, 59, 6, 4, 5, 3),  # heads past the edges of vectors
    (1, 2, 2, 5, 6, 59, 20, 4, 6, 3, 5),  # the same with large keys
    (3, 2, 2, 4, 1, 5, 2, 6, 7, 8, 9),  # one key
    (5, 1, 1, 3, 5, 2, 4, 7, 9, 4, 6),  # one head; batch equals key length
    (2, 5, 5, 5, 4, 3, 7, 10, 6, 8, 11),  # heads equal query length
    (3, 4, 4, 2, 6, 4, 6, 9, 5, 7, 8),  # heads equal head size, keys equal value head size
    (9, 1, 1, 2, 3, 2, 2, 4, 5, 3, 6),  # many items
    (1, 12, 4, 3, 2, 2, 3, 6, 4, 7, 5),  # many heads in groups of three
    (2, 8, 2, 2, 3, 3, 4, 5, 6, 4, 7),  # groups of four
    (1, 8, 8, 3, 3, 3, 2, 9, 9, 9, 8),  # many heads of their own
    (1, 5, 1, 3, 4, 4, 3, 6, 5, 7, 4),  # all heads share one
    (1, 1, 1, 34, 34, 4, 3, 5, 5, 5, 4),  # square scores past a tile edge
    (1, 1, 1, 40, 6, 3, 4, 5, 4, 6, 3),  # many queries, few keys
    (1, 2, 2, 2, 3, 32, 32, 4, 5, 6, 7),  # the usual head sizes
    (1, 1, 1, 2, 3, 64, 64, 5, 4, 3, 6),
    (1, 1, 1, 3, 2, 128, 128, 4, 6, 5, 3),
    (1, 1, 1, 3, 4, 80, 96, 6, 3, 4, 5),
    (1, 1, 1, 3, 4, 136, 5, 6, 3, 4, 5),  # keys wider than a vector unit's tile
    (1, 1, 1, 4, 3, 6, 136, 5, 4, 3, 7),  # values wider than that
    (1, 2, 1, 3, 3, 264, 260, 4, 3, 5, 6),  # both, past 256
)
# For weights that stay even in half precision: few keys, and enough rows for some uneven weights.
_EVEN: Final = (12, 3, 3, 3, 3, 3, 3, 9, 9, 9, 9)
# For candidates whose lengths may differ: a key of one query, and a query, past every tile edge.
_LONG: Final = (
    (1, 2, 2, 1, 257, 4, 4, 5, 6, 7, 4),
    (1, 1, 1, 257, 2, 3, 4, 5, 6, 7, 4),
)
# For answers of which only some rows are judged: lengths on both sides of the edges of large tiles.
_LENGTHS: Final = (
    (1, 1, 1, 65, 65, 3, 2, 4, 4, 4, 3),
    (2, 1, 1, 64, 64, 4, 3, 5, 5, 5, 4),
    (1, 1, 1, 129, 129, 3, 4, 4, 4, 4, 5),
    (1, 2, 2, 100, 100, 2, 3, 3, 3, 3, 4),
    (1, 1, 1, 257, 257, 4, 2, 4, 4, 4, 3),
    (1, 2, 1, 70, 130, 3, 4, 5, 4, 3, 4),
    (1, 1, 1, 128, 128, 5, 4, 6, 6, 6, 5),
    (1, 1, 1, 300, 40, 4, 3, 4, 5, 3, 4),
    (2, 1, 1, 3, 513, 3, 3, 3, 4, 5, 3),
    (1, 1, 1, 130, 7, 3, 4, 4, 4, 4, 5),
)
# Once or twice: thousands of scores, whatever they are needed for.
_LONGEST: Final = ((1, 1, 1, 513, 513, 2, 2, 3, 3, 3, 2), (1, 1, 1, 1, 1025, 4, 3, 3, 4, 5, 3))
# Where every gradient is judged: few queries and many keys, many queries and few keys; then square.
_TILES: Final = (
    (1, 1, 1, 2, 130, 4, 3, 5, 6, 7, 4),
    (1, 1, 1, 131, 3, 3, 4, 5, 6, 7, 4),
    (1, 2, 1, 3, 259, 3, 2, 5, 4, 6, 4),
    (1, 1, 1, 2, 515, 4, 3, 4, 5, 3, 4),
    (1, 1, 1, 514, 2, 3, 4, 4, 5, 3, 4),
)
_SQUARE_TILES: Final = ((1, 1, 1, 66, 66, 4, 3, 5, 5, 5, 4), (1, 1, 1, 130, 130, 3, 4, 4, 4, 4, 3))
# The same for channels: past 256, 128, 64 and 32 of keys and of values; few heads keep it cheap.
_WIDE: Final = (
    (1, 1, 1, 3, 4, 264, 260, 4, 3, 5, 6),
    (1, 1, 1, 3, 3, 136, 168, 5, 4, 3, 7),
    (1, 1, 1, 2, 4, 100, 72, 6, 3, 4, 5),
    (1, 2, 1, 4, 5, 40, 48, 4, 5, 6, 3),
)
# Each digit of ``Draft.extras`` moves on by about a third of its range.
_EXTRAS_STEP: Final = 89
_FORMS: Final = 5


def edge_problems(
    candidate: Candidate,
    space: Space,
    *,
    dtype: str,
    most: int | None = None,
    strength: int = 2,
) -> list[Problem]:
    """The edge problems of a space, each with another recipe, mask option and pattern in turn.

    Only the first ``most`` are made, as fitting sizes to a candidate takes a while; None: all. Of
    combinations so many values meet as the ``strength`` says.
    """
    every = edges_in_turn(candidate, space, dtype=dtype, strength=strength)
    return list(itertools.islice(every, most))


def edges_in_turn(
    candidate: Candidate, space: Space, *, dtype: str, strength: int = 2
) -> Iterator[Problem]:
    """The distinct edge problems of a space, each made on demand."""
    seen: set[Problem] = set()
    for problem in _every(candidate, space, dtype=dtype, strength=strength):
        if problem not in seen and space.admits(problem, candidate):
            seen.add(problem)
            yield problem


def _every(candidate: Candidate, space: Space, *, dtype: str, strength: int) -> Iterable[Problem]:
    """The edge problems, with repetitions and some outside the space."""
    if space.edges == "combinations":
        return combinations_in_turn(candidate, space, dtype=dtype, strength=strength)
    if space.edges == "tiles":
        drafts = _tile_drafts(candidate)
    else:
        drafts = _long_drafts() if space.edges == "lengths" else _short_drafts(candidate, space)
    if stays_even(candidate) and dtype in ("float16", "bfloat16"):
        drafts = [_draft(0, _EVEN, masked=True, causal=False), *drafts]
    return (draft.problem(candidate, space, dtype=dtype) for draft in drafts)


def _short_drafts(candidate: Candidate, space: Space) -> list[Draft]:
    crossing = space.square != "always" and can_cross(candidate)
    every = (*_SIZES, *_LONG) if crossing else _SIZES
    return [
        _draft(index, sizes, masked=index % 3 < 2, causal=index // 2 % 2 == 1)  # noqa: PLR2004 (two of three)
        for index, sizes in enumerate(every)
    ]


def _long_drafts() -> list[Draft]:
    """Each length with and without mask and causality, the longest lengths once or twice."""
    options = [(masked, causal) for masked in (False, True) for causal in (False, True)]
    every = [(sizes, *how) for how in options for sizes in _LENGTHS]
    every += [(sizes, *how) for sizes, how in zip(2 * _LONGEST, options, strict=True)]
    return [
        _draft(index, sizes, masked=masked, causal=causal)
        for index, (sizes, masked, causal) in enumerate(every)
    ]


def _tile_drafts(candidate: Candidate) -> list[Draft]:
    """Each tile length once, the first two and wide heads without any option."""
    lengths = _TILES if can_cross(candidate) else _SQUARE_TILES
    drafts = [
        _draft(index, sizes, masked=index % 3 == 2, causal=index % 4 == 3)  # noqa: PLR2004 (in turn)
        for index, sizes in enumerate(lengths)
    ]
    return drafts + [
        _draft(index, sizes, masked=False, causal=False)
        for index, sizes in enumerate(_WIDE, start=len(drafts))
    ]


def _draft(index: int, sizes: tuple[int, ...], *, masked: bool, causal: bool) -> Draft:
    return Draft(
        geometry=Geometry(**dict(zip(FIELDS, sizes, strict=True))),
        seed=index,
        # Every second recipe is ordinary, so that no size meets only values that hide it.
        values=index // 2 + 1 if index % 2 else 0,
        option=index,
        pattern=index + index // _FORMS,
        masked=masked,
        causal=causal,
        finite_bias=index // 3 % 2 == 0,
        biases=index % 4 != 1,
        # A candidate with more options must get as many problems without them.
        extras=index * _EXTRAS_STEP if index % 2 else 0,
    )
