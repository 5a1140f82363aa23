"""The sizes a graph fixes, and its limits: by header, by names, by calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..process import Array
from ..reading import Axis, Role, suggests
from ..sidecar import GraphDeclaration
from .first_call import FirstCall, constant
from .interpreting import RoleAssignment
from .plans import CallPlan
from .probe import BaseCall

# Steps from the first call's size to other sizes a dynamic axis must accept.
_STEPS: Final = (1, 2, 4)


class SizeProbe:
    """Calls a graph at other sizes."""

    def __init__(self, start: FirstCall, assignment: RoleAssignment, masks: Sequence[Role]) -> None:
        self.start, self.assignment = start, assignment
        self.masks = masks
        self._items = "B" in assignment.layout
        query, answer = start.base.feeds[assignment.first].shape, start.base.answer.shape
        packed = tuple(
            size for letter, size in zip(assignment.layout, query, strict=True) if letter in "BL"
        )
        # A first answer of a different shape leaves later shapes without meaning.
        self._kept = answer[:-1] in (query[:-1], packed)

    def size(self, letter: str) -> int:
        """Return an axis's size in the running call; 1 for items without an axis."""
        if letter == "B" and not self._items:
            return 1
        at = self.assignment.layout.index("B" if letter == "B" else "L")
        roles = self.assignment
        name = roles.attended[-1] if letter == "K" else roles.first
        return int(self.start.base.feeds[name].shape[at])

    def runs(self, letters: str) -> bool:
        """Tell whether another size of the axes, changed together, is accepted."""
        return any(self.accepts(letters, step) for step in _STEPS)

    def accepts(self, letters: str, step: int) -> bool:
        """Tell whether axes longer by a step give an answer, of the right shape if known."""
        longer = self.base(letters, step)
        return longer is not None and (not self._kept or self._grew(longer, letters, step))

    def _grew(self, longer: BaseCall, letters: str, step: int) -> bool:
        """Tell whether the answer grew along the query's axes alone."""
        layout, expected = self.assignment.layout, list(self.start.base.answer.shape)
        if len(expected) < len(layout):  # heads are packed into the answer's last axis
            layout = layout.replace("H", "")
        for letter, size in (("B", "B"), ("L", "Q")):
            if size in letters and letter in layout:
                expected[layout.index(letter)] += step
        return list(longer.answer.shape) == expected

    def base(self, letters: str, step: int) -> BaseCall | None:
        """Return the call with longer axes, None if refused."""
        return self.start.base.with_inputs(self._feeds(letters, step))

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
    """Return values with the named axes longer, repeated from the start."""
    for at, letter in enumerate(axes):
        size = values.shape[at]
        if letter in letters:
            values = np.take(values, np.arange(size + step) % size, axis=at)
    return values


# Longer than the lengths clauses draw: a graph running here is assumed to run at any.
_LONG: Final = 520


def longest(sizes_probe: SizeProbe, letters: str) -> int | None:
    """Return the greatest accepted length of the axes, None if no end is in sight."""
    size = sizes_probe.size(letters[0])
    accepted, refused = 0, _LONG - size
    if refused <= 0 or sizes_probe.accepts(letters, refused):
        return None
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        if sizes_probe.accepts(letters, middle):
            accepted = middle
        else:
            refused = middle
    return size + accepted


Pin = int | str | tuple[int, ...]
_FIELDS: Final = {"B": "batch", "Q": "query_length", "K": "key_length"}


@dataclass(frozen=True, kw_only=True)
class FixedSizes:
    """Fixed sizes of calls, and the inputs that are neither tensors nor masks."""

    pins: Mapping[str, Pin]
    baked: Mapping[str, int]
    others: list[Role]
    assumptions: list[str]


def read_spans(
    start: FirstCall,
    assignment: RoleAssignment,
    declared: GraphDeclaration,
    masks: Sequence[Role],
    sizes_probe: SizeProbe,
) -> FixedSizes:
    """Find the sizes that a graph fixes."""
    axes = _axes(start.plan, assignment, masks)
    pins: dict[str, Pin] = {
        _FIELDS[letter]: sizes[0]
        for letter in _FIELDS
        if (sizes := [axis for axis in axes[letter] if isinstance(axis, int)])
    }
    if "H" not in assignment.layout:
        pins.update(_heads(start, masks, sizes_probe.size("B")))
    open_letters = [letter for letter in _FIELDS if axes[letter] and _FIELDS[letter] not in pins]
    sentences: list[str] = []
    equal = False
    if {"Q", "K"} <= set(open_letters):
        equal = _equal(axes, assignment)
        if not (equal or sizes_probe.runs("Q") or sizes_probe.runs("K")) and sizes_probe.runs("QK"):
            equal = True
            sentences.append("query and key lengths must be equal: the runtime refuses others")
    if equal:
        open_letters.remove("K")
        pins["key_length"] = "query_length"
    baked: dict[str, int] = {}
    for letter in open_letters:
        letters = "QK" if letter == "Q" and equal else letter
        result, why = _tried_sizes(letters, sizes_probe)
        if result is not None:
            pins[_FIELDS[letter]] = result
            sentences.append(why)
        if isinstance(result, int):
            baked |= {_FIELDS[name]: result for name in letters}
    others = _others(start.plan, declared)
    return FixedSizes(pins=pins, baked=baked, others=others, assumptions=sentences)


def _tried_sizes(letters: str, sizes_probe: SizeProbe) -> tuple[Pin | None, str]:
    """Return the pin of an axis the file leaves open, None if it is open, and a sentence."""
    field = _FIELDS[letters[0]].replace("_", " ")
    if not sizes_probe.runs(letters):
        size = sizes_probe.size(letters[0])
        return size, (
            f"{field} is taken for {size}: the file calls it dynamic, but no other size tried "
            "gives an answer of the right shape"
        )
    most = longest(sizes_probe, letters) if letters != "B" else None
    if most is None:
        return None, ""
    return tuple(range(1, most + 1)), f"{field} is at most {most}: the runtime refuses longer ones"


def _axes(
    plan: CallPlan, assignment: RoleAssignment, masks: Sequence[Role]
) -> dict[str, list[Axis]]:
    """Return the header's axes of items, queries and keys."""
    result: dict[str, list[Axis]] = {letter: [] for letter in _FIELDS}
    for port in plan.tensors:
        role = assignment.roles[port.name]
        shape = port.shape or (None,) * len(assignment.layout)
        for letter, axis in zip(assignment.layout, shape, strict=True):
            if letter == "B":
                result["B"].append(axis)
            elif letter == "L":
                if role in ("query", "x"):
                    result["Q"].append(axis)
                if role != "query":
                    result["K"].append(axis)
    ports = {port.name: port for port, _ in plan.masks}
    for mask in masks:
        shape = ports[mask.name].shape or (None,) * len(mask.axes)
        for letter, axis in zip(mask.axes, shape, strict=False):
            if letter in result:
                result[letter].append(axis)
    return result


def _equal(axes: Mapping[str, Sequence[Axis]], assignment: RoleAssignment) -> bool:
    """Tell whether query and key lengths share a name."""
    if "x" in assignment.roles.values():
        return True
    names = {axis for axis in axes["Q"] if isinstance(axis, str)}
    return bool(names & {axis for axis in axes["K"] if isinstance(axis, str)})


def _heads(start: FirstCall, masks: Sequence[Role], items: int) -> dict[str, int]:
    """Return the number of heads shown by the shape of a mask."""
    for mask in masks:
        shape = start.base.feeds[mask.name].shape
        if "H" in mask.axes:
            return {"num_heads": shape[mask.axes.index("H")]}
        if "F" in mask.axes:
            return {"num_heads": shape[0] // items}
    return {}


def _others(plan: CallPlan, declared: GraphDeclaration) -> list[Role]:
    """Return the roles of caches and constants."""
    result = []
    for port in plan.pasts:
        said = declared.inputs.get(port.name, {}).get("role")
        role = said or ("past_value" if suggests(port.name, "value") else "past_key")
        result.append(Role(name=port.name, role=role, axes="BHLD", dtype=port.dtype))
    for port in plan.constants:
        shape = tuple(size if isinstance(size, int) else 1 for size in port.shape or ())
        value: Any = constant(port, shape, declared)
        result.append(Role(name=port.name, role="constant", dtype=port.dtype, value=value))
    return result
