"""Calling a graph at other sizes than those of the first call that ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..process import Array
from ..reading import Role
from .assigning import Assignment
from .basing import Start
from .traits import Base

# Other sizes that a dynamic axis must run at, added to that of the first call.
_STEPS: Final = (1, 2, 4)


class Stretch:
    """Calls a graph at other sizes."""

    def __init__(self, start: Start, assignment: Assignment, masks: Sequence[Role]) -> None:
        self.start, self.assignment = start, assignment
        self.masks = masks
        self._items = "B" in assignment.layout
        query, answer = start.base.feeds[assignment.first].shape, start.base.answer.shape
        packed = tuple(
            size for letter, size in zip(assignment.layout, query, strict=True) if letter in "BL"
        )
        # Where the first answer already has another shape, that of others tells nothing.
        self._kept = answer[:-1] in (query[:-1], packed)

    def size(self, letter: str) -> int:
        """What an axis has in the call that runs; 1 for items that have no axis."""
        if letter == "B" and not self._items:
            return 1
        at = self.assignment.layout.index("B" if letter == "B" else "L")
        roles = self.assignment
        name = roles.attended[-1] if letter == "K" else roles.first
        return int(self.start.base.feeds[name].shape[at])

    def runs(self, letters: str) -> bool:
        """Whether any other size of some axes, changed together, is accepted."""
        return any(self.accepts(letters, step) for step in _STEPS)

    def accepts(self, letters: str, step: int) -> bool:
        """Whether some axes longer by a step give an answer, of the right shape if any is."""
        longer = self.base(letters, step)
        return longer is not None and (not self._kept or self._grew(longer, letters, step))

    def _grew(self, longer: Base, letters: str, step: int) -> bool:
        """Whether the answer grew where the query did and kept its other axes."""
        layout, expected = self.assignment.layout, list(self.start.base.answer.shape)
        if len(expected) < len(layout):  # heads are packed into the answer's last axis
            layout = layout.replace("H", "")
        for letter, size in (("B", "B"), ("L", "Q")):
            if size in letters and letter in layout:
                expected[layout.index(letter)] += step
        return list(longer.answer.shape) == expected

    def base(self, letters: str, step: int) -> Base | None:
        """The call with some axes longer, None when it is refused."""
        feeds, base = self._feeds(letters, step), self.start.base
        answers = base.probe.ask(feeds)
        if answers is None:
            return None
        return Base(base.probe, feeds, base.output, answers[base.output])

    def _feeds(self, letters: str, step: int) -> dict[str, Array]:
        feeds: dict[str, Array] = dict(self.start.base.feeds)
        for name, role in self.assignment.roles.items():
            axes = self.assignment.layout.replace("L", "Q" if role in ("query", "x") else "K")
            feeds[name] = _grown(feeds[name], axes, letters, step)
        for mask in self.masks:
            feeds[mask.name] = self._mask(mask, feeds[mask.name], letters, step)
        for port in self.start.plan.pasts:
            if "B" in letters:
                feeds[port.name] = _grown(feeds[port.name], "B", letters, step)
        return feeds

    def _mask(self, mask: Role, values: Array, letters: str, step: int) -> Array:
        if mask.role == "lengths" and "K" in letters:
            values = values + np.asarray(step, values.dtype)
        if "F" in mask.axes and "B" in letters and self._items:
            heads = values.shape[mask.axes.index("F")] // self.size("B")
            values = _grown(values, mask.axes, "F", step * heads)
        return _grown(values, mask.axes, letters, step)


def _grown(values: Array, axes: str, letters: str, step: int) -> Array:
    """Values with some axes longer, repeated from the start."""
    for at, letter in enumerate(axes):
        size = values.shape[at]
        if letter in letters:
            values = np.take(values, np.arange(size + step) % size, axis=at)
    return values
