"""Roles of mask inputs: form and polarity, by the keys removed from the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..process import Array
from ..reading import Port, Role, suggests, suggests_drop
from ..sidecar import GraphDeclaration
from .first_call import FirstCall
from .interpreting import RoleAssignment
from .plans import FLOATS, INTEGERS, USUAL_HEADS, mask_axes
from .probe import BaseCall, separate_axis

_PATTERNS: Final = 2


@dataclass(frozen=True, kw_only=True)
class AnswerAxes:
    """Where items, heads and positions of the query are in the answer, and all sizes.

    ``sizes`` gives the size of each letter; that of ``H`` is missing where heads do not show.
    """

    item: int | None
    head: int | None
    length: int
    sizes: Mapping[str, int]


def places(base: BaseCall, assignment: RoleAssignment, output_axes: str) -> AnswerAxes:
    """Read off a call what the letters stand for."""
    return AnswerAxes(
        item=output_axes.index("B") if "B" in output_axes else None,
        head=output_axes.index("H") if "H" in output_axes else None,
        length=output_axes.index("L"),
        sizes=letter_sizes(base, assignment),
    )


def letters(base: BaseCall, port: Port, planned: str, where: AnswerAxes) -> tuple[str, bool]:
    """Return the likeliest axes of a mask, and whether the mask's behaviour shows them.

    ``planned`` in doubt.
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
    """Tell whether a shape fits the letters; heads may be any number if unknown."""
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
    axes: str, shape: tuple[int, ...], reached: list[int | str | None], where: AnswerAxes
) -> int:
    """Count the axes in agreement with their letters, minus the contradictions."""
    score = 0
    for letter, size, axis in zip(axes, shape, reached, strict=True):
        if size == 1 or axis == "unknown":
            continue
        wanted = {"B": where.item, "Q": where.length, "H": where.head}.get(letter)
        score += 1 if axis == wanted or (letter == "F" and axis == where.item) else -1
    return score


def _reached(base: BaseCall, port: Port, at: int) -> int | str | None:
    """Return the answer's axis along which changes of mask slices stay separate.

    None where they mix, ``unknown`` when the mask has no effect.
    """
    size = base.feeds[port.name].shape[at]
    if size == 1:
        return "unknown"
    first, last = (base.change({port.name: _pattern(base, port, at, i)}) for i in (0, size - 1))
    if not first.any() or not last.any() or first.shape != last.shape:
        return "unknown"
    return separate_axis(first, last)


def _pattern(base: BaseCall, port: Port, at: int, index: int) -> Array:
    """Return a mask with another value at every second place of one slice."""
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


def widened(start: FirstCall, assignment: RoleAssignment) -> FirstCall:
    """The call with masks as large as the graph takes them."""
    masks = []
    for port, axes in start.plan.masks:
        result = axes
        for wider in _wider(port, axes, start.base.probe.declared):
            grown = _grown(start, assignment, port, wider)
            if grown is not None:
                start, result = grown, wider
                break
        masks.append((port, result))
    return replace(start, plan=replace(start.plan, masks=tuple(masks)))


def _wider(port: Port, axes: str, declared: GraphDeclaration) -> Iterator[str]:
    """Yield letters that replace a 1 of the mask's where the file does not fix this size."""
    shape = port.shape or (None,) * len(axes)
    for option in sorted(mask_axes(port, declared), key=lambda axes: axes.count("1")):
        if (
            len(option) == len(axes)
            and option != axes
            and all(
                new == old or (old == "1" and size != 1)
                for new, old, size in zip(option, axes, shape, strict=True)
            )
        ):
            yield option


def _grown(start: FirstCall, assignment: RoleAssignment, port: Port, axes: str) -> FirstCall | None:
    """Return the call with a mask of these axes, None when no number of heads is accepted."""
    sizes = letter_sizes(start.base, assignment)
    heads = [start.base.probe.declared.num_heads, sizes.get("H"), *USUAL_HEADS]
    for number in dict.fromkeys(heads if set(axes) & {"H", "F"} else [1]):
        if number is None or (number == 1 and set(axes) & {"H", "F"}):
            continue
        letters = {**sizes, "H": number, "F": sizes["B"] * number}
        shape = tuple(letters[letter] for letter in axes)
        values = np.broadcast_to(start.base.feeds[port.name].flat[0], shape).copy()
        base = start.base.with_inputs({port.name: values})
        if base is not None and base.answer.shape == start.base.answer.shape:
            return replace(start, base=base)
    return None


def letter_sizes(base: BaseCall, assignment: RoleAssignment) -> Mapping[str, int]:
    """The size of each letter in a call; that of ``H`` is missing where heads do not show."""
    query = base.feeds[assignment.first].shape
    key = base.feeds[assignment.attended[0]].shape
    layout = assignment.layout
    sizes = {"Q": query[layout.index("L")], "K": key[layout.index("L")], "1": 1}
    sizes["B"] = query[layout.index("B")] if "B" in layout else 1
    if "H" in layout:
        sizes["H"] = query[layout.index("H")]
    return sizes


# The largest growth of a weight when 1 is added to its logit.
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


def read_masks(start: FirstCall, assignment: RoleAssignment, output_axes: str) -> Masks:
    """The role of every mask of a graph."""
    roles, sentences = [], []
    declared = start.base.probe.declared
    where = places(start.base, assignment, output_axes)
    for port, planned in start.plan.masks:
        said = declared.inputs.get(port.name, {})
        axes, by_behaviour = planned, True
        if "axes" not in said:
            axes, by_behaviour = letters(start.base, port, planned, where)
        if "role" in said:
            role, how = str(said["role"]), f"declared in {declared.where or 'the declaration'}"
        else:
            role, how = _MaskProbe(start.base, assignment, port, axes, where).role()
        by = "" if by_behaviour else "; its axes by shape"
        value = said.get("value", 0) if role == "constant" else None
        roles.append(Role(name=port.name, role=role, axes=axes, dtype=port.dtype, value=value))
        sentences.append(f"input {port.name}: {role}, axes {axes} ({how}{by})")
    return Masks(roles=roles, assumptions=sentences)


class _MaskProbe:
    def __init__(
        self, base: BaseCall, assignment: RoleAssignment, port: Port, axes: str, where: AnswerAxes
    ) -> None:
        self.base, self.assignment, self.port = base, assignment, port
        self.axes, self.where = axes, where
        keys = base.feeds[assignment.attended[0]].shape[assignment.length_axis]
        fill = base.feeds[port.name]
        reach = {at: self._influence(fill, at) for at in (keys - 1, 0)}
        self.key = max(reach, key=lambda at: reach[at] > 0.0)

    def role(self) -> tuple[str, str]:
        if "K" not in self.axes:
            return "lengths", self._lengths()
        suffix = "_int" if self.port.dtype in INTEGERS else ""
        with_zero, with_one = (self._influence(self._marked(mark), self.key) for mark in (0, 1))
        if (with_zero == 0.0) != (with_one == 0.0):
            taken = int(with_one == 0.0)
            role = ("keep", "drop")[taken] + suffix
            return role, f"by behaviour: {taken} takes a key out of the answer"
        if self.port.dtype != "bool" and self._is_added():
            if suffix:  # nobody means to add 0 and 1 to logits
                return self._by_name() + suffix, _TRAP
            return "bias", "by behaviour: one number added everywhere changes nothing"
        return self._unclear(with_zero, with_one)

    def _unclear(self, with_zero: float, with_one: float) -> tuple[str, str]:
        """Return the role of a mask that hides nothing: by a key's influence under each mark."""
        suffix = "_int" if self.port.dtype in INTEGERS else ""
        if not self._differ(self._marked(0), self._marked(1)):  # a mark at one key
            role = "bias" if self.port.dtype in FLOATS else self._by_name() + suffix
            return role, "by name and dtype: what it holds changes nothing"
        if self.port.dtype in FLOATS:
            return "bias", "by dtype: it behaves neither as a bias nor as 0 and 1"
        if max(with_zero, with_one) > 2 * min(with_zero, with_one):
            taken = int(with_one < with_zero)
            role = ("keep", "drop")[taken] + suffix
            return role, f"by behaviour, which is not clear: {taken} makes a key matter less"
        if suffix and self._shifts() and not suggests(self.port.name, "mask"):
            return "constant", "by behaviour: no number in it takes a key out; 0 in every call"
        role = self._by_name() + suffix
        return role, "by name and dtype: neither 0 nor 1 takes a key out of the answer"

    def _by_name(self) -> str:
        return "drop" if suggests_drop(self.port.name) else "keep"

    def _lengths(self) -> str:
        keys = self.base.feeds[self.assignment.attended[0]].shape[self.assignment.length_axis]
        fewer = np.full_like(self.base.feeds[self.port.name], keys - 1)
        if self._influence(fewer, keys - 1) == 0.0 and keys > 1:
            return "by behaviour: keys from this number on do not matter"
        return "by dtype and shape: its behaviour is not that of numbers of keys"

    def _differ(self, *masks: Array) -> bool:
        answers = [self.base.evaluate({self.port.name: mask}) for mask in masks]
        return bool(self.base.probe.changed(*answers).any())

    def _shifts(self) -> bool:
        shape = self.base.feeds[self.port.name].shape
        return self._differ(*(np.full(shape, value, self.port.dtype) for value in (0, 1)))

    def _is_added(self) -> bool:
        """Tell whether the mask is added to the logits as a number."""
        if self._shifts():
            return False
        shape = self.base.feeds[self.port.name].shape
        if self.port.dtype in FLOATS:
            return True
        before = self._influence(np.zeros(shape, self.port.dtype), self.key)
        return before < self._influence(self._marked(1), self.key) <= _ADDED * before

    def _marked(self, mark: int) -> Array:
        """Return a mask with a mark at the key, and its opposite elsewhere."""
        shape = self.base.feeds[self.port.name].shape
        values = np.full(shape, 1 - mark, dtype=self.port.dtype)
        where: list[slice | int] = [slice(None)] * values.ndim
        where[self.axes.index("K")] = self.key if shape[self.axes.index("K")] > 1 else 0
        values[tuple(where)] = mark
        return values

    def _influence(self, mask: Array, key: int) -> float:
        """Return how far a key's content moves the answer under a mask."""
        masked = self.base.with_inputs({self.port.name: mask})
        if masked is None:
            return 0.0
        return max(self._moved(masked, name, key) for name in self.assignment.attended)

    def _moved(self, masked: BaseCall, name: str, key: int) -> float:
        redrawn = self.base.redrawn(name, self.assignment.length_axis, key)
        other = masked.evaluate({name: redrawn})
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
