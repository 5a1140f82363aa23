"""Up to which length a graph runs: a table of positions, or a mask kept in it, ends somewhere."""

from __future__ import annotations

from typing import Final

from .stretching import Stretch

# Lengths beyond those that clauses draw: what runs here is taken to run at any.
_LONG: Final = 520


def longest(stretch: Stretch, letters: str) -> int | None:
    """The greatest length of some axes that is accepted, None when there is no end in sight."""
    size = stretch.size(letters[0])
    accepted, refused = 0, _LONG - size
    if refused <= 0 or stretch.accepts(letters, refused):
        return None
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        if stretch.accepts(letters, middle):
            accepted = middle
        else:
            refused = middle
    return size + accepted
