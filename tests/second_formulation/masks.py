"""Whether a query may attend a key, decided for one pair at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core import Problem


def admits(problem: Problem, point: Any, b: int, h: int, i: int, j: int) -> bool:
    """Whether mask, lengths, causality and window leave key j to query i (the bias not counted)."""
    given = mask_admits(problem, point, b, h, i, j)
    structure = structure_admits(problem, point, i, j)
    if point.causal_combination == "causal-only":
        return structure
    if point.causal_combination == "mask-only":
        return given
    if point.causal_combination == "either":
        return structure or given
    return structure and given


def structure_admits(problem: Problem, point: Any, i: int, j: int) -> bool:
    """Whether causality and window show key j to query i."""
    position = i
    if point.causal_alignment == "bottom-right":
        position = i + problem.sizes.key_length - problem.sizes.query_length
    if problem.causal and j > position + point.causal_offset:
        return False
    if problem.window is None:
        return True
    left, right = problem.window
    if left != -1 and j < position - left - point.window_offset:
        return False
    return right == -1 or j <= position + right + point.window_offset


def mask_admits(problem: Problem, point: Any, b: int, h: int, i: int, j: int) -> bool:
    """Whether the boolean mask and the lengths show key j to query i."""
    if problem.keep is not None:
        entry = broadcast_entry(problem.keep, b, h, i, j)
        if entry != (point.mask_polarity == "keep"):
            return False
    if problem.lengths is None:
        return True
    length = problem.lengths[b]
    if isinstance(length, list):
        length = length[i]
    return bool(j < length)


def broadcast_entry(table: Any, *place: int) -> Any:
    """One entry of nested lists in which an axis of length one stands for any length."""
    for index in place:
        table = table[0] if len(table) == 1 else table[index]
    return table
