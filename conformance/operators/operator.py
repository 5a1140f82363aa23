"""The operator, and the axes of the results that operators change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch import Tensor

# Names of a place along an axis, by the letter of the axis.
PLACES: Final = {
    "B": "batch item",
    "H": "head",
    "G": "key/value head",
    "Q": "query",
    "K": "key",
    "D": "channel",
    "V": "channel",
    "E": "channel",
    "R": "channel pair",
}


@dataclass(frozen=True)
class Operator:
    """A change of a result.

    ``words`` follow "the weights are"; ``change`` gets the result and, by the names of its further
    parameters, other results of the program. It raises torch's errors or ValueError for unsuitable
    results. ``misplaces`` marks an exchange of the content of heads, items or channels, which
    nobody intends. ``opens`` adds rows whose answer rounding decides to the empty rows ``[B, H,
    Lq]``, and may read other results.
    """

    words: str
    change: Callable[..., Any]
    misplaces: bool = False
    fix: str = ""
    opens: Callable[..., Tensor] | None = None


def axis_of(axes: str, letter: str) -> int:
    """Return the index of an axis, counted from the last, so that axes in front do not matter."""
    return axes.index(letter) - len(axes)


def insert_place(words: str, place: str) -> str:
    """Replace ``{}`` in words by a place's name, and ``{}s`` by its plural."""
    plural = "queries" if place == "query" else f"{place}s"
    return words.replace("{}s", plural).replace("{}", place)


AlongAxis = Callable[[Tensor, int], Tensor]


def axes_of(
    axes: str, *, pairs: bool = False
) -> Iterator[tuple[str, Callable[[AlongAxis], Callable[[Tensor], Tensor]]]]:
    """Yield the name of each axis, with a function that binds a change to the axis.

    With ``pairs``, batch items and heads also count as one axis, as kernels count blocks.
    """
    for letter in filter(PLACES.get, dict.fromkeys(axes)):
        yield PLACES[letter], partial(_bound, axis=axis_of(axes, letter), along=_change_along)
    if pairs and axes[:2] in ("BH", "BG"):
        yield (
            "item-head pair",
            partial(_bound, axis=axis_of(axes, axes[1]), along=_change_along_pairs),
        )


def _bound(change: AlongAxis, *, axis: int, along: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return partial(along, change=change, axis=axis)


def _change_along(result: Tensor, *, change: AlongAxis, axis: int) -> Tensor:
    return change(result, axis)


def _change_along_pairs(result: Tensor, *, change: AlongAxis, axis: int) -> Tensor:
    """Change a result along the joined axis of items and heads; ``axis`` is the heads' axis."""
    changed = change(result.flatten(axis - 1, axis), axis)
    pairs: Tensor = changed.unflatten(axis, result.shape[axis - 1 : axis + 1 or None])
    return pairs
