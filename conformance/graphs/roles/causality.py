"""Whether a graph always applies a causal rule, and how it is aligned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .assigning import Assignment
from .traits import Base, Traits, affected

_NOTHING: tuple[str | None, list[str]] = (None, [])


def always_causal(
    base: Base, assignment: Assignment, seen: Mapping[str, Traits]
) -> tuple[str | None, list[str]]:
    """The alignment of a causal rule that no input turns on, and a sentence about it."""
    name = assignment.attended[-1]
    at, first = assignment.length_axis, assignment.first
    keys, queries = base.feeds[name].shape[at], base.feeds[first].shape[at]
    if not seen[name].matters or keys == 1 or queries == 1 or base.answer.ndim <= at:
        return _NOTHING
    if base.answer.shape[at] != queries:
        return _NOTHING
    allowed = np.zeros((queries, keys), dtype=bool)
    for key in range(keys):
        change = affected(base, name, at, key)
        others = tuple(axis for axis in range(change.ndim) if axis != at)
        allowed[:, key] = change.any(axis=others)
    for alignment, offset in (("bottom-right", keys - queries), ("top-left", 0)):
        rule = np.tri(queries, keys, offset, dtype=bool)
        if (allowed == rule).all() and not rule.all():
            seen_by = f"a change of a row of {name} changes no earlier row of the answer"
            return alignment, [f"a causal rule always applies, aligned {alignment} ({seen_by})"]
    return _NOTHING
