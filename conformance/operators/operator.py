"""What an operator is, and the axes of the results that it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

# What one place along an axis of a stage is called, by the letter of the axis.
PLACES: Final = {
    "B": "batch item",
    "H": "head",
    "G": "key/value head",
    "Q": "query",
    "K": "key",
    "D": "channel",
    "V": "channel",
    "E": "channel",
}


@dataclass(frozen=True)
class Operator:
    """One way to change a result.

    ``words`` follow "the weights are"; ``change`` gets the result and, by the names of its further
    parameters, other results of the program. It raises one of torch's errors, or ValueError, where
    a result has no such change. ``misplaces`` says that each head, item or channel gets what is
    another's, which nobody means.
    """

    words: str
    change: Callable[..., Any]
    misplaces: bool = False


def axis_of(axes: str, letter: str) -> int:
    """The place of an axis, counted from the last, so that further axes in front change nothing."""
    return axes.index(letter) - len(axes)
