"""Whether a graph always applies a causal rule, and how it is aligned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from .assigning import Assignment
from .stretching import Stretch
from .traits import Base, affected

_LONGER: Final = 2
Allowed = np.ndarray[Any, np.dtype[np.bool_]]


def always_causal(
    base: Base, assignment: Assignment, stretch: Stretch
) -> tuple[str | None, list[str]]:
    """The alignment of a causal rule that no input turns on, and a sentence about it.

    Only calls with more keys than queries, or fewer, tell alignments apart: with equal lengths
    alone it is called bottom-right.
    """
    seen = [one for one in _seen(base, assignment, stretch) if one is not None]
    if not seen or all(one.all() for one in seen):
        return None, []
    for alignment in ("bottom-right", "top-left"):
        if all((one == _rule(one, alignment)).all() for one in seen):
            why = "later keys do not reach earlier positions of the answer"
            return alignment, [f"a causal rule always applies, aligned {alignment} ({why})"]
    return None, []


def _rule(seen: Allowed, alignment: str) -> Allowed:
    queries, keys = seen.shape
    return np.tri(queries, keys, keys - queries if alignment == "bottom-right" else 0, dtype=bool)


def _seen(base: Base, assignment: Assignment, stretch: Stretch) -> Iterator[Allowed | None]:
    """Which query depends on which key: in the first call, and in longer ones if it is a rule."""
    first = _reach(base, assignment)
    yield first
    if first is None or first.all() or "x" in assignment.roles.values():
        return
    for letters in ("K", "Q"):
        longer = stretch.base(letters, _LONGER)
        if longer is not None:
            yield _reach(longer, assignment)


def _reach(base: Base, assignment: Assignment) -> Allowed | None:
    """Whether a query's answer, along rows, depends on a key's content; None when it cannot tell.

    Content is that of the value where there is one: a query with one key depends on it, too.
    """
    name, at = assignment.attended[-1], assignment.length_axis
    if "value" in assignment.roles.values():
        name = assignment.of("value")
    keys, queries = base.feeds[name].shape[at], base.feeds[assignment.first].shape[at]
    if keys == 1 or base.answer.ndim <= at or base.answer.shape[at] != queries:
        return None
    seen = np.zeros((queries, keys), dtype=bool)
    for key in range(keys):
        change = affected(base, name, at, key)
        if change.shape != base.answer.shape:
            return None
        seen[:, key] = change.any(axis=tuple(axis for axis in range(change.ndim) if axis != at))
    return seen
