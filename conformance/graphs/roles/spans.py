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
from .limits import longest
from .plans import Plan
from .stretching import Stretch

Pin = int | str | tuple[int, ...]
_FIELDS: Final = {"B": "batch", "Q": "query_length", "K": "key_length"}


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Sizes of calls that are fixed, and the inputs that are neither tensors nor masks."""

    pins: Mapping[str, Pin]
    baked: Mapping[str, int]
    others: list[Role]
    assumptions: list[str]


def read_spans(
    start: Start, assignment: Assignment, told: Told, masks: Sequence[Role], stretch: Stretch
) -> Spans:
    """Find the sizes that a graph fixes."""
    axes = _axes(start.plan, assignment, masks)
    pins = _fixed(axes)
    if "H" not in assignment.layout:
        pins.update(_heads(start, masks, stretch.size("B")))
    open_letters = [letter for letter in _FIELDS if axes[letter] and _FIELDS[letter] not in pins]
    sentences: list[str] = []
    equal = False
    if {"Q", "K"} <= set(open_letters):
        equal = _equal(axes, assignment)
        if not equal and _refuses_unequal(stretch):
            equal = True
            sentences.append("query and key lengths must be equal: the runtime refuses others")
    if equal:
        open_letters.remove("K")
        pins["key_length"] = "query_length"
    baked: dict[str, int] = {}
    for letter in open_letters:
        letters = "QK" if letter == "Q" and equal else letter
        found, why = _asked(letters, stretch)
        if found is not None:
            pins[_FIELDS[letter]] = found
            sentences.append(why)
        if isinstance(found, int):
            baked |= {_FIELDS[one]: found for one in letters}
    others = _others(start.plan, told)
    return Spans(pins=pins, baked=baked, others=others, assumptions=sentences)


def _fixed(axes: Mapping[str, Sequence[Axis]]) -> dict[str, Pin]:
    """The sizes that the file fixes."""
    sizes = {
        field: [axis for axis in axes[letter] if isinstance(axis, int)]
        for letter, field in _FIELDS.items()
    }
    return {field: found[0] for field, found in sizes.items() if found}


def _refuses_unequal(stretch: Stretch) -> bool:
    return not stretch.runs("Q") and not stretch.runs("K") and stretch.runs("QK")


def _asked(letters: str, stretch: Stretch) -> tuple[Pin | None, str]:
    """The pin of an axis that the file leaves open, None when it is, and a sentence."""
    field = _FIELDS[letters[0]].replace("_", " ")
    if not stretch.runs(letters):
        size = stretch.size(letters[0])
        return size, (
            f"{field} is taken for {size}: the file calls it dynamic, but no other size tried "
            "gives an answer of the right shape"
        )
    most = longest(stretch, letters) if letters != "B" else None
    if most is None:
        return None, ""
    return tuple(range(1, most + 1)), f"{field} is at most {most}: the runtime refuses longer ones"


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
