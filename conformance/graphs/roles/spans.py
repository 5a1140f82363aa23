"""Which sizes a graph fixes: by its header, by equal names of axes, or although it denies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..header import Axis
from ..reading import Role
from ..told import Told
from . import names
from .assigning import Assignment
from .basing import Start, constant
from .plans import Plan
from .stretching import Stretch

_FIELDS: Final = {"B": "batch", "Q": "query_length", "K": "key_length"}


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Sizes of calls that are fixed, and the inputs that are neither tensors nor masks."""

    pins: Mapping[str, int | str]
    baked: Mapping[str, int]
    others: list[Role]
    assumptions: list[str]


def read_spans(
    start: Start, assignment: Assignment, told: Told, masks: Sequence[Role], stretch: Stretch
) -> Spans:
    """Find the sizes that a graph fixes."""
    axes = _axes(start.plan, assignment, masks)
    pins: dict[str, int | str] = {}
    for letter, field in _FIELDS.items():
        fixed = [axis for axis in axes[letter] if isinstance(axis, int)]
        if fixed:
            pins[field] = fixed[0]
    if "H" not in assignment.layout:
        pins.update(_heads(start, masks, stretch.size("B")))
    baked: dict[str, int] = {}
    sentences = []
    open_letters = [letter for letter in _FIELDS if axes[letter] and _FIELDS[letter] not in pins]
    equal = _equal(axes, assignment)
    if "Q" in open_letters and "K" in open_letters:
        if not equal and not stretch.runs("Q") and not stretch.runs("K") and stretch.runs("QK"):
            equal = True
            sentences.append("query and key lengths must be equal: the runtime refuses others")
        if equal:
            open_letters.remove("K")
            pins["key_length"] = "query_length"
    for letter in open_letters:
        letters = "QK" if letter == "Q" and equal else letter
        if not stretch.runs(letters):
            size = stretch.size(letter)
            baked[_FIELDS[letter]] = pins[_FIELDS[letter]] = size
            sentences.append(
                f"{_FIELDS[letter].replace('_', ' ')} is taken for {size}: the file calls it "
                "dynamic, but the runtime refuses every other size tried"
            )
    if pins.get("key_length") == "query_length" and "query_length" in baked:
        baked["key_length"] = baked["query_length"]
    return Spans(
        pins=pins,
        baked=baked,
        others=_others(start.plan, told),
        assumptions=sentences,
    )


def _axes(plan: Plan, assignment: Assignment, masks: Sequence[Role]) -> dict[str, list[Axis]]:
    """What the header says of items, queries and keys."""
    found: dict[str, list[Axis]] = {letter: [] for letter in _FIELDS}
    for port in plan.tensors:
        role = assignment.roles[port.name]
        shape = port.shape or (None,) * len(assignment.layout)
        for letter, axis in zip(assignment.layout, shape, strict=True):
            if letter == "B":
                found["B"].append(axis)
            elif letter == "L":
                if role in ("query", "x"):
                    found["Q"].append(axis)
                if role != "query":
                    found["K"].append(axis)
    ports = {port.name: port for port, _ in plan.masks}
    for mask in masks:
        shape = ports[mask.name].shape or (None,) * len(mask.axes)
        for letter, axis in zip(mask.axes, shape, strict=False):
            if letter in found:
                found[letter].append(axis)
    return found


def _equal(axes: Mapping[str, Sequence[Axis]], assignment: Assignment) -> bool:
    """Whether query and key lengths have one name."""
    if "x" in assignment.roles.values():
        return True
    names = {axis for axis in axes["Q"] if isinstance(axis, str)}
    return bool(names & {axis for axis in axes["K"] if isinstance(axis, str)})


def _heads(start: Start, masks: Sequence[Role], items: int) -> dict[str, int]:
    """The number of heads that the shape of a mask tells."""
    for mask in masks:
        shape = start.base.feeds[mask.name].shape
        if "H" in mask.axes:
            return {"num_heads": shape[mask.axes.index("H")]}
        if "F" in mask.axes:
            return {"num_heads": shape[0] // items}
    return {}


def _others(plan: Plan, told: Told) -> list[Role]:
    """Caches and constants."""
    found = []
    for port in plan.pasts:
        said = told.inputs.get(port.name, {}).get("role")
        role = said or ("past_value" if names.suggests(port.name, "value") else "past_key")
        found.append(Role(name=port.name, role=role, axes="BHLD", dtype=port.dtype))
    for port in plan.constants:
        shape = tuple(size if isinstance(size, int) else 1 for size in port.shape or ())
        value: Any = constant(port, shape, told)
        found.append(Role(name=port.name, role="constant", dtype=port.dtype, value=value))
    return found
