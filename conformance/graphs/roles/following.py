"""Whose length the answer has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .basing import Start
from .traits import Base

Followed = Mapping[tuple[str, int], bool | None]


def followed(start: Start) -> Followed:
    """For each tensor and axis whether the answer has that size, and not that of the others.

    None where nothing tells: sizes are equal, and other ones are refused.
    """
    found: dict[tuple[str, int], bool | None] = {}
    base = start.base
    names = [port.name for port in start.plan.tensors]
    for axis, letter in enumerate(start.plan.layout):
        if letter in "BL":
            for name in names:
                found[name, axis] = _by_shape(base, names, name, axis)
                if found[name, axis] is None and len(names) > 1:
                    found[name, axis] = _by_growth(base, name, axis)
    return found


def _by_shape(base: Base, names: list[str], name: str, axis: int) -> bool | None:
    """From sizes that differ between tensors."""
    sizes = {one: base.feeds[one].shape[axis] for one in names}
    if len(set(sizes.values())) == 1:
        return None
    outer = base.answer.shape[:-1]
    counted = [size for size in sizes.values() if size in outer]
    if len(set(counted)) != 1:
        return None
    return sizes[name] in outer


def _by_growth(base: Base, name: str, axis: int) -> bool | None:
    """From one tensor that grows alone, where that is accepted."""
    values = base.feeds[name]
    longer = np.concatenate([values, values.take([0], axis)], axis=axis)
    answer = base.ask_with({name: longer})
    if answer is None or answer.ndim != base.answer.ndim:
        return None
    size = values.shape[axis]
    before, after = (one.shape[:-1].count(size + 1) for one in (base.answer, answer))
    return bool(after > before)
