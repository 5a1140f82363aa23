"""Whether a query may attend a key, decided for one pair at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core import Problem


def admits(problem: Problem, point: Any, b: int, h: int, i: int, j: int) -> bool:
    """Whether mask, lengths, causality and window leave key j to query i (the bias not counted)."""
    shown = window_admits(problem, point, b, i, j)
    causal = causality_admits(problem, point, b, i, j)
    if masks_lost(problem, point):
        return shown and causal
    unmasked = mask_admits(problem, point, b, h, i, j)
    whole = problem.keep is not None or problem.lengths is not None
    if flagged(problem, point) and whole and point.causal_combination == "either":
        return shown and (causal or unmasked)
    return shown and causal and unmasked


def flagged(problem: Problem, point: Any) -> bool:
    """Whether a call is causal, were there no mask."""
    return problem.causal and (problem.sizes.query_length != 1 or point.one_query_causal)


def _masked(problem: Problem) -> bool:
    return problem.keep is not None or problem.lengths is not None or problem.bias is not None


def masks_lost(problem: Problem, point: Any) -> bool:
    """Whether causality takes the place of the masks, the additive one too."""
    return flagged(problem, point) and point.causal_combination == "causal-only"


def structure_admits(problem: Problem, point: Any, b: int, i: int, j: int) -> bool:
    """Whether causality and window show key j to query i."""
    return window_admits(problem, point, b, i, j) and causality_admits(problem, point, b, i, j)


def causality_admits(problem: Problem, point: Any, b: int, i: int, j: int) -> bool:
    """Whether causality, where it counts, shows key j to query i."""
    if not flagged(problem, point):
        return True
    if _masked(problem) and point.causal_combination == "mask-only":
        return True
    return _behind(problem, point, b, i, j) <= point.causal_offset


def _behind(problem: Problem, point: Any, b: int, i: int, j: int) -> int:
    """How far key j comes after query i, in memory or by the positions of the call."""
    if point.causal_by == "positions" and problem.key_positions is not None:
        return int(problem.key_positions[b][j] - problem.query_positions[b][i])
    if point.causal_alignment == "bottom-right":
        return j - i - int(problem.sizes.key_length - problem.sizes.query_length)
    return j - i


def window_admits(problem: Problem, point: Any, b: int, i: int, j: int) -> bool:
    """Whether the window shows key j to query i."""
    if problem.window is None:
        return True
    left, right = problem.window
    behind = _behind(problem, point, b, i, j)
    if left != -1 and behind < -left - point.window_offset:
        return False
    return right == -1 or behind <= right + point.window_offset


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
