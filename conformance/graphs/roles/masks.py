"""Which input lets whom attend to whom: form and polarity, by what it takes out of the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..header import Port
from ..process import Array
from ..reading import Role
from ..told import Told
from . import names
from .assigning import Assignment
from .basing import Start
from .lettering import Places, letters, places
from .plans import FLOATS, INTEGERS
from .traits import Base

# What a weight grows by, at most, when 1 is added to its logit.
_ADDED: Final = math.e
_TRAP: Final = (
    "by behaviour and dtype: its 0 and 1 are added to the logits, so it hides nothing; declare a "
    "bias if it is meant as one"
)


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The roles of the masks and what was assumed."""

    roles: list[Role]
    assumptions: list[str]


def read_masks(start: Start, assignment: Assignment, told: Told, output_axes: str) -> Masks:
    """The role of every mask of a graph."""
    roles, sentences = [], []
    where = places(start.base, assignment, output_axes)
    for port, planned in start.plan.masks:
        said = told.inputs.get(port.name, {})
        axes, seen = planned, True
        if "axes" not in said:
            axes, seen = letters(start.base, port, planned, where)
        if "role" in said:
            role, how = str(said["role"]), f"declared in {told.where or 'the declaration'}"
        else:
            role, how = _Asked(start.base, assignment, port, axes, where).role()
        by = "" if seen else "; its axes by shape"
        value = said.get("value", 0) if role == "constant" else None
        roles.append(Role(name=port.name, role=role, axes=axes, dtype=port.dtype, value=value))
        sentences.append(f"input {port.name}: {role}, axes {axes} ({how}{by})")
    return Masks(roles=roles, assumptions=sentences)


class _Asked:
    """One mask that is asked what it does to one key."""

    def __init__(
        self, base: Base, assignment: Assignment, port: Port, axes: str, where: Places
    ) -> None:
        self.base, self.assignment, self.port = base, assignment, port
        self.axes, self.where = axes, where
        keys = base.feeds[assignment.attended[0]].shape[assignment.length_axis]
        fill = base.feeds[port.name]
        reach = {at: self._influence(fill, at) for at in (keys - 1, 0)}
        self.key = max(reach, key=lambda at: reach[at] > 0.0)

    def role(self) -> tuple[str, str]:
        """The role and how it was found."""
        if "K" not in self.axes:
            return "lengths", self._lengths()
        suffix = "_int" if self.port.dtype in INTEGERS else ""
        zero, one = (
            self._influence(self._marked(0), self.key),
            self._influence(self._marked(1), self.key),
        )
        if (zero == 0.0) != (one == 0.0):
            taken = int(one == 0.0)
            role = ("keep", "drop")[taken] + suffix
            return role, f"by behaviour: {taken} takes a key out of the answer"
        if self.port.dtype != "bool" and self._is_added():
            if suffix:  # nobody means to add 0 and 1 to logits
                return self._by_name() + suffix, _TRAP
            return "bias", "by behaviour: one number added everywhere changes nothing"
        return self._unclear(zero, one)

    def _unclear(self, zero: float, one: float) -> tuple[str, str]:
        """The role of a mask that takes nothing out: how much a key matters under each mark."""
        suffix = "_int" if self.port.dtype in INTEGERS else ""
        if not self._acts():
            role = "bias" if self.port.dtype in FLOATS else self._by_name() + suffix
            return role, "by name and dtype: what it holds changes nothing"
        if self.port.dtype in FLOATS:
            return "bias", "by dtype: it behaves neither as a bias nor as 0 and 1"
        if max(zero, one) > 2 * min(zero, one):
            taken = int(one < zero)
            role = ("keep", "drop")[taken] + suffix
            return role, f"by behaviour, which is not clear: {taken} makes a key matter less"
        if suffix and self._shifts() and not names.suggests(self.port.name, "mask"):
            return "constant", "by behaviour: no number in it takes a key out; 0 in every call"
        role = self._by_name() + suffix
        return role, "by name and dtype: neither 0 nor 1 takes a key out of the answer"

    def _by_name(self) -> str:
        return "drop" if names.suggests_drop(self.port.name) else "keep"

    def _lengths(self) -> str:
        keys = self.base.feeds[self.assignment.attended[0]].shape[self.assignment.length_axis]
        fewer = np.full_like(self.base.feeds[self.port.name], keys - 1)
        if self._influence(fewer, keys - 1) == 0.0 and keys > 1:
            return "by behaviour: keys from this number on do not matter"
        return "by dtype and shape: its behaviour is not that of numbers of keys"

    def _acts(self) -> bool:
        """Whether a mark at one key changes the answer at all."""
        answers = [self.base.ask_with({self.port.name: self._marked(mark)}) for mark in (0, 1)]
        return bool(self.base.probe.changed(*answers).any())

    def _shifts(self) -> bool:
        """Whether one number everywhere in it answers otherwise than another."""
        shape = self.base.feeds[self.port.name].shape
        answers = [
            self.base.ask_with({self.port.name: np.full(shape, value, self.port.dtype)})
            for value in (0, 1)
        ]
        return bool(self.base.probe.changed(*answers).any())

    def _is_added(self) -> bool:
        """Whether the mask goes into the logits as a number."""
        if self._shifts():
            return False
        shape = self.base.feeds[self.port.name].shape
        if self.port.dtype in FLOATS:
            return True
        before = self._influence(np.zeros(shape, self.port.dtype), self.key)
        return before < self._influence(self._marked(1), self.key) <= _ADDED * before

    def _marked(self, mark: int) -> Array:
        """A mask with a mark at the key, and the opposite everywhere else."""
        shape = self.base.feeds[self.port.name].shape
        values = np.full(shape, 1 - mark, dtype=self.port.dtype)
        where: list[slice | int] = [slice(None)] * values.ndim
        where[self.axes.index("K")] = self.key if shape[self.axes.index("K")] > 1 else 0
        values[tuple(where)] = mark
        return values

    def _influence(self, mask: Array, key: int) -> float:
        """How far the content of a key moves the answer under a mask."""
        answer = self.base.ask_with({self.port.name: mask})
        if answer is None:
            return 0.0
        feeds = {**self.base.feeds, self.port.name: mask}
        masked = Base(self.base.probe, feeds, self.base.output, answer)
        return max(self._moved(masked, name, key) for name in self.assignment.attended)

    def _moved(self, masked: Base, name: str, key: int) -> float:
        redrawn = self.base.redrawn(name, self.assignment.length_axis, key)
        other = masked.ask_with({name: redrawn})
        if other is None or other.shape != masked.answer.shape:
            return 0.0
        changed = masked.probe.changed(masked.answer, other)
        with np.errstate(invalid="ignore"):
            moved = np.abs(other.astype(np.float64) - masked.answer)
        moved = np.where(changed, np.nan_to_num(moved, nan=1.0, posinf=1.0), 0.0)
        at = self.where.length
        if self.assignment.roles[name] == "x" and moved.shape[at] > key:
            moved = np.delete(moved, key, axis=at)  # that row depends on it as a query
        return float(moved.max(initial=0.0))
