"""Where queries stand among the keys."""

from __future__ import annotations

from reference import STANDARD, query_positions


def test_bottom_right() -> None:
    """The last query stands at the last key, whichever are more."""
    assert query_positions(2, 5, STANDARD).tolist() == [3, 4]
    assert query_positions(3, 1, STANDARD).tolist() == [-2, -1, 0]


def test_top_left() -> None:
    """The first query stands at the first key."""
    assert query_positions(2, 5, STANDARD.replace(causal_alignment="top-left")).tolist() == [0, 1]
