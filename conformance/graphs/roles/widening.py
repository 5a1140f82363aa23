"""Axes of masks that were tried at one entry although the file leaves them open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ..header import Port
from ..told import Told
from .assigning import Assignment
from .basing import Start
from .plans import mask_axes
from .sizes import USUAL_HEADS
from .traits import Base


def widened(start: Start, assignment: Assignment, told: Told) -> Start:
    """The same call with masks as large as the graph takes them."""
    masks = []
    for port, axes in start.plan.masks:
        found = axes
        for wider in _wider(port, axes, told):
            grown = _grown(start, assignment, port, wider, told)
            if grown is not None:
                start, found = grown, wider
                break
        masks.append((port, found))
    return replace(start, plan=replace(start.plan, masks=tuple(masks)))


def _wider(port: Port, axes: str, told: Told) -> Iterator[str]:
    """Letters that differ from a mask's only where it has 1 and the file does not insist on it."""
    shape = port.shape or (None,) * len(axes)
    for option in sorted(mask_axes(port, told), key=lambda axes: axes.count("1")):
        if (
            len(option) == len(axes)
            and option != axes
            and all(
                new == old or (old == "1" and size != 1)
                for new, old, size in zip(option, axes, shape, strict=True)
            )
        ):
            yield option


def _grown(start: Start, assignment: Assignment, port: Port, axes: str, told: Told) -> Start | None:
    """The call with a mask of these axes, None when no number of heads is accepted."""
    sizes = known_sizes(start.base, assignment)
    heads = [told.num_heads, sizes.get("H"), *USUAL_HEADS]
    for number in dict.fromkeys(heads if set(axes) & {"H", "F"} else [1]):
        if number is None or (number == 1 and set(axes) & {"H", "F"}):
            continue
        letters = {**sizes, "H": number, "F": sizes["B"] * number}
        shape = tuple(letters[letter] for letter in axes)
        values = np.broadcast_to(start.base.feeds[port.name].flat[0], shape).copy()
        feeds = {**start.base.feeds, port.name: values}
        answers = start.base.probe.ask(feeds)
        if answers is not None and answers[start.base.output].shape == start.base.answer.shape:
            answer = answers[start.base.output]
            return replace(start, base=Base(start.base.probe, feeds, start.base.output, answer))
    return None


def known_sizes(base: Base, assignment: Assignment) -> Mapping[str, int]:
    """The size of each letter in a call; that of ``H`` is missing where heads do not show."""
    query = base.feeds[assignment.first].shape
    key = base.feeds[assignment.attended[0]].shape
    layout = assignment.layout
    sizes = {"Q": query[layout.index("L")], "K": key[layout.index("L")], "1": 1}
    sizes["B"] = query[layout.index("B")] if "B" in layout else 1
    if "H" in layout:
        sizes["H"] = query[layout.index("H")]
    return sizes
