"""Which axis of a mask is which: by what a change along it reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..header import Port
from ..process import Array
from .assigning import Assignment
from .plans import FLOATS, INTEGERS, mask_axes
from .traits import Base
from .widening import known_sizes

_PATTERNS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where items, heads and positions of the query are in the answer, and all sizes.

    ``sizes`` gives the size of each letter; that of ``H`` is missing where heads do not show.
    """

    item: int | None
    head: int | None
    length: int
    sizes: Mapping[str, int]


def places(base: Base, assignment: Assignment, output_axes: str) -> Places:
    """Read off a call what the letters stand for."""
    return Places(
        item=_find(output_axes, "B"),
        head=_find(output_axes, "H"),
        length=output_axes.index("L"),
        sizes=known_sizes(base, assignment),
    )


def _find(axes: str, letter: str) -> int | None:
    return axes.index(letter) if letter in axes else None


def letters(base: Base, port: Port, planned: str, where: Places) -> tuple[str, bool]:
    """The likeliest axes of a mask, and whether its behaviour says so.

    ``planned`` is taken where nothing tells more.
    """
    shape = base.feeds[port.name].shape
    options = [axes for axes in mask_axes(port) if _fits(axes, shape, where.sizes)]
    options = [planned, *(axes for axes in options if axes != planned)]
    if len(options) == 1:
        return planned, False
    reached = [_reached(base, port, at) for at in range(len(shape))]
    scores = [_score(axes, shape, reached, where) for axes in options]
    best = max(scores)
    return options[scores.index(best)], best > 0


def _fits(axes: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
    """Whether a shape can have these letters; heads may be any number where they do not show."""
    for letter, size in zip(axes, shape, strict=True):
        if letter == "F":
            heads = sizes.get("H")
            good = (
                size % sizes["B"] == 0 and size > sizes["B"] and heads in (None, size // sizes["B"])
            )
        elif letter == "H":
            good = size == sizes["H"] if "H" in sizes else size > 1
        else:
            good = size == sizes[letter]
        if not good:
            return False
    return True


def _score(
    axes: str, shape: tuple[int, ...], reached: list[int | str | None], where: Places
) -> int:
    """How many axes behave as their letters say, less those that do not."""
    score = 0
    for letter, size, axis in zip(axes, shape, reached, strict=True):
        if size == 1 or axis == "unknown":
            continue
        wanted = {"B": where.item, "Q": where.length, "H": where.head}.get(letter)
        score += 1 if axis == wanted or (letter == "F" and axis == where.item) else -1
    return score


def _reached(base: Base, port: Port, at: int) -> int | str | None:
    """The axis of the answer along which changes in slices of a mask stay apart.

    None where they mix, ``unknown`` when the mask does nothing.
    """
    size = base.feeds[port.name].shape[at]
    if size == 1:
        return "unknown"
    first, last = (base.change({port.name: _pattern(base, port, at, i)}) for i in (0, size - 1))
    if not first.any() or not last.any() or first.shape != last.shape:
        return "unknown"
    for axis in range(first.ndim):
        others = tuple(other for other in range(first.ndim) if other != axis)
        if not (first.any(axis=others) & last.any(axis=others)).any():
            return axis
    return None


def _pattern(base: Base, port: Port, at: int, index: int) -> Array:
    """A mask with another value at every second place of one slice."""
    values = base.feeds[port.name].copy()
    where: list[slice | int] = [slice(None)] * values.ndim
    where[at] = index
    part = values[tuple(where)]
    places = np.indices(part.shape).sum(axis=0) if part.ndim else np.zeros((), dtype=int)
    if port.dtype in FLOATS:
        other = part + base.probe.draw(part.shape, "float64")
    elif port.dtype in INTEGERS and not 0 <= values.flat[0] <= 1:
        other = np.ones_like(part)  # lengths: one key
    else:
        other = 1 - part.astype(np.int64)
    changed = np.where(places % _PATTERNS == 0, other, part)
    values[tuple(where)] = changed.astype(values.dtype)
    return values
