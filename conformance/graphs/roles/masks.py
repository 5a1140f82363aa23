"""Which input lets whom attend to whom: form, polarity and the order of its axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..header import Port
from ..process import Array
from ..reading import Role
from ..told import Told
from . import names
from .assigning import Assignment
from .basing import Start
from .plans import FLOATS, INTEGERS
from .traits import Base, affected


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The roles of the masks and what was assumed."""

    roles: list[Role]
    assumptions: list[str]


def read_masks(start: Start, assignment: Assignment, told: Told) -> Masks:
    """The role of every mask of a graph."""
    roles, sentences = [], []
    for port, axes in start.plan.masks:
        said = told.inputs.get(port.name, {})
        if said.get("role"):
            role, how = str(said["role"]), f"declared in {told.where or 'the declaration'}"
        else:
            role, how = _role(start.base, assignment, port, axes)
        roles.append(Role(name=port.name, role=role, axes=axes, dtype=port.dtype))
        sentences.append(f"input {port.name}: {role}, axes {axes} ({how})")
    return Masks(roles=roles, assumptions=sentences)


def _role(base: Base, assignment: Assignment, port: Port, axes: str) -> tuple[str, str]:
    if "K" not in axes:
        return "lengths", "by shape"
    if port.dtype in FLOATS:
        return _float_role(base, assignment, port, axes)
    zero, one = (_influence(base, assignment, port, axes, drop) for drop in (0, 1))
    suffix = "_int" if port.dtype in INTEGERS else ""
    if zero == one:
        role = "drop" if names.suggests_drop(port.name) else "keep"
        return role + suffix, "by name: neither 0 nor 1 takes a key out of the answer"
    drops = "drop" if one < zero else "keep"
    fact = f"by behaviour: {int(one < zero)} takes a key out of the answer"
    return drops + suffix, fact


def _float_role(base: Base, assignment: Assignment, port: Port, axes: str) -> tuple[str, str]:
    shape = base.feeds[port.name].shape
    ones = base.ask_with({port.name: np.ones(shape, port.dtype)})
    zeros = base.ask_with({port.name: np.zeros(shape, port.dtype)})
    if not base.probe.changed(zeros, ones).any():
        return "bias", "by behaviour: one number added everywhere changes nothing"
    zero, one = (_influence(base, assignment, port, axes, drop) for drop in (0, 1))
    if zero == one:
        return "bias", "by dtype: its behaviour is neither that of a bias nor of 0 and 1"
    drops = "drop" if one < zero else "keep"
    return drops, f"by behaviour: {int(one < zero)} takes a key out of the answer"


def _influence(base: Base, assignment: Assignment, port: Port, axes: str, drop: int) -> int:
    """How many numbers of the answer the last key reaches when a mask has ``drop`` there."""
    values = np.full(base.feeds[port.name].shape, 1 - drop, dtype=port.dtype)
    where: list[slice | int] = [slice(None)] * values.ndim
    where[axes.index("K")] = -1
    values[tuple(where)] = drop
    masked = _with(base, port.name, values)
    if masked is None:
        return -1
    at = assignment.length_axis
    total = 0
    for name in assignment.attended:
        change = affected(masked, name, at, masked.feeds[name].shape[at] - 1)
        if assignment.roles[name] == "x" and change.ndim > at:
            change = np.delete(change, -1, axis=at)  # its own row depends on it as a query
        total += int(np.count_nonzero(change))
    return total


def _with(base: Base, name: str, values: Array) -> Base | None:
    """A base with another mask."""
    answer = base.ask_with({name: values})
    if answer is None:
        return None
    return Base(base.probe, {**base.feeds, name: values}, base.output, answer)
