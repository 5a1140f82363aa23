"""Whether a tensor is one of some known values, however its axes are ordered, or joined."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ...base.geometry import Geometry
from ...tolerance import model
from ..agreement import within
from ..mistaken_answer import Array, array_of
from .steps import Step

# Axes that may be joined, the second being the faster one: heads of one token, tokens of all items.
# Where channels were slower than heads, or positions than heads, another layer would be computed.
_JOINED: Final = frozenset({"BN", "BG", "BQ", "NG", "ND", "GD", "GQ", "PN", "PG", "PD"})
# Axes that stand in this order in most values, and are often of one size.
_ALIKE: Final = ("QK", "BN", "BG")


@dataclass(frozen=True, eq=False)
class _Known:
    """A value without the axes along which nothing changes, and where it is."""

    letters: str
    value: Tensor
    partial: bool
    ordered: bool
    inner: bool
    room: float

    @cached_property
    def sums(self) -> tuple[float, float]:
        """Its sum, and how many numbers that is made of: few values are compared with any."""
        return _sums(array_of(self.value.double()))


class KnownValues:
    """Some values that a tensor may be, for a candidate that computes with numbers of a dtype."""

    def __init__(
        self, steps: Sequence[Step], sizes: Geometry, dtype: torch.dtype, *, tiled: bool
    ) -> None:
        self._sizes = sizes
        self._tiled = tiled
        self._unit = model.STEP_ROOM * torch.finfo(dtype).eps * _steepness(steps)
        self._known = [known for step in steps if (known := self._reduced(step)) is not None]

    @property
    def telling(self) -> bool:
        """Whether rounding leaves enough of the numbers to tell values apart."""
        return self._unit <= model.STEP_UNKNOWN

    def kind(self, value: Tensor) -> str:
        """Whether a tensor is one of the values: "step", "inner" for one inside a softmax, or "".

        Nothing that is one number throughout is.
        """
        if value.is_complex() or value.numel() < 2:  # noqa: PLR2004 (a number may be anything)
            return ""
        reduced, _ = _without_repeats(value, "." * value.dim())
        if not reduced.dim():
            return ""
        fitting = [
            known
            for known in self._known
            if known.value.numel() == reduced.numel()
            and (known.value.dtype == torch.bool) == (value.dtype == torch.bool)
        ]
        if not fitting:
            return ""
        number = reduced.double()
        sums = _sums(array_of(number))
        kinds = [
            "inner" if known.inner else "step"
            for known in fitting
            if known.partial or _close(sums, known.sums, known.room * number.numel())
            if self._is(number, known)
        ]
        return max(kinds, default="")

    def _is(self, number: Tensor, known: _Known) -> bool:
        shape = tuple(number.shape)
        expected = known.value.double()
        for order in arrangements(known.letters, tuple(expected.shape), shape):
            if known.ordered and _is_transposed(known.letters, order):
                continue
            if _is_exchanged(known.letters, tuple(expected.shape), order):
                continue
            arranged = expected.permute(order).reshape(shape)
            same = within(number, arranged, torch.full_like(arranged, known.room))
            if known.partial:
                same = same | arranged.isnan()
            if bool(same.all()):
                return True
        return False

    def _reduced(self, step: Step) -> _Known | None:
        """A step as it is compared; None for one number throughout."""
        heads, groups = self._sizes.num_heads, self._sizes.num_kv_heads
        letters, value = step.axes, step.value
        if "H" in letters:
            axis = letters.index("H")
            whole = value.shape[axis] == heads
            pair = (heads // groups, groups) if self._tiled else (groups, heads // groups)
            named = ("GN" if self._tiled else "NG") if whole else "N"
            value = value.unflatten(axis, pair) if whole else value
            letters = letters.replace("H", named)
        if not value.numel() or (step.partial and bool(value.isnan().all())):
            return None
        if step.partial:  # where nothing is known nothing repeats
            kept = [axis for axis, size in enumerate(value.shape) if size > 1]
            letters = "".join(letters[axis] for axis in kept)
            value = value.squeeze()
        else:
            value, letters = _without_repeats(value, letters)
        if not letters:
            return None
        number = array_of(value.double())
        largest = float(np.abs(number[np.isfinite(number)]).max(initial=0.0))
        exact = value.dtype == torch.bool
        room = 0.0 if exact else self._unit * largest
        flags = (step.partial, step.ordered, step.inner)
        return _Known(letters, value, *flags, room)


def _is_transposed(letters: str, order: tuple[int, ...]) -> bool:
    """Whether keys come before queries in an order of axes."""
    placed = "".join(letters[axis] for axis in order)
    return -1 < placed.find("K") < placed.find("Q")


def _is_exchanged(letters: str, sizes: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Whether axes of one size have changed places, which their shape does not show.

    Scores with keys before queries, or heads before items, may be another value: nobody could tell.
    """
    for pair in _ALIKE:
        axes = [letters.find(letter) for letter in pair]
        if min(axes) >= 0 and sizes[axes[0]] == sizes[axes[1]]:
            first, second = (order.index(axis) for axis in axes)
            if first > second:
                return True
    return False


def _steepness(steps: Sequence[Step]) -> float:
    """The largest number among the finite logits, and one: errors of weights grow like it."""
    numbers = [step.value for step in steps if step.axes == "BHQK"]
    sizes = [torch.where(torch.isfinite(one), one, 0.0).abs() for one in numbers]
    return 1.0 + max((float(size.max()) for size in sizes if size.numel()), default=0.0)


def _without_repeats(value: Tensor, letters: str) -> tuple[Tensor, str]:
    """A tensor without the axes along which nothing changes, and the letters of the others."""
    # Numpy's calls on few numbers take a fifth of torch's time; it does not know short formats.
    short = value.is_floating_point() and value.dtype.itemsize < torch.float32.itemsize
    array = array_of(value.float() if short else value)
    kept = ""
    for letter in letters:
        axis = len(kept)
        if array.shape[axis] == 1 or _repeats(array, axis):
            value, array = value.select(axis, 0), array.take(0, axis)
        else:
            kept += letter
    return value, kept


def _repeats(array: Array, axis: int) -> bool:
    """Whether an array repeats its first entry along an axis, NaN included."""
    first = array.take([0], axis)
    one, other = first.flat[0], array.take(1, axis).flat[0]
    if one != other and one == one and other == other:  # noqa: PLR0124 (neither is NaN)
        return False  # mostly one look tells
    same = array == first
    if bool(same.all()):
        return True
    if array.dtype.kind != "f" or not bool(np.isnan(first).any()):
        return False
    return bool((same | (np.isnan(array) & np.isnan(first))).all())


def _sums(number: Array) -> tuple[float, float]:
    """The sum of the finite numbers, which no order of axes changes, and how many there are."""
    finite = number[np.isfinite(number)]
    return float(finite.sum()), float(finite.size)


def _close(one: tuple[float, float], other: tuple[float, float], room: float) -> bool:
    return one[1] == other[1] and abs(one[0] - other[0]) <= room


@lru_cache(maxsize=4096)
def arrangements(
    letters: str, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """The orders of some axes in which they, joined where that is usual, have a shape."""
    if math.prod(sizes) != math.prod(shape):
        return ()
    return tuple(_orders(letters, sizes, shape, ()))


def _orders(
    letters: str, sizes: tuple[int, ...], shape: tuple[int, ...], chosen: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Ways to fill the first axis of a shape with one axis or several joined, then the others."""
    if not shape:
        if len(chosen) == len(letters):
            yield chosen
        return

    def joined(own: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
        if size == shape[0]:
            yield own
        for axis in range(len(letters)):
            if axis in chosen or axis in own or size * sizes[axis] > shape[0]:
                continue
            if not own or letters[own[-1]] + letters[axis] in _JOINED:
                yield from joined((*own, axis), size * sizes[axis])

    for own in joined((), 1):
        yield from _orders(letters, sizes, shape[1:], (*chosen, *own))
