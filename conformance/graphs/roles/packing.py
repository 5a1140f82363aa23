"""Layer or core, packing of heads, and widths: from the channels that influence each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...errors import UsageError
from ..reading import Port, Role
from ..sidecar import GraphDeclaration
from .interpreting import RoleAssignment
from .plans import CallPlan
from .probe import BaseCall, affected, local_axis


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The kind of a graph, its tensors with their final axes, and the fixed sizes."""

    kind: Literal["layer", "core"]
    tensors: list[Role]
    output: Role
    pins: Mapping[str, int | str]
    assumptions: list[str]


def read_packing(
    base: BaseCall, plan: CallPlan, assignment: RoleAssignment, declared: GraphDeclaration
) -> Packing:
    """Tell a layer from a core, and find the heads of a packed one.

    Raises UsageError where axes of heads are declared of what is not query, key and value.
    """
    said = "".join(str(declared.inputs.get(name, {}).get("axes", "")) for name in assignment.roles)
    heads = [letter for letter in "HMF" if letter in said]
    if heads and not set(_FIELDS) <= set(assignment.roles.values()):
        inputs = ", ".join(f"{name} ({role})" for name, role in assignment.roles.items())
        msg = (
            f"{declared.where or 'the declaration'} names axes with {heads[0]}, which heads have, "
            f"but the inputs are {inputs}, no projected query, key and value: write tokens as "
            '"BLE"'
        )
        raise UsageError(msg)
    if "H" in assignment.layout:
        return _apart(base, assignment, {port.name: port for port in plan.tensors})
    if "M" in said or "F" in said or ("E" not in said and _is_core(base, assignment)):
        return _packed(base, assignment, declared, folded="F" in said)
    return _layer(base, assignment)


def _layer(base: BaseCall, assignment: RoleAssignment) -> Packing:
    axes = assignment.layout
    widths = {f"{role}_size": base.feeds[n].shape[-1] for n, role in assignment.roles.items()}
    pins = {name: size for name, size in widths.items() if name[: -len("_size")] in _FIELDS}
    if "x_size" in widths:
        pins = dict.fromkeys(("query_size", "key_size", "value_size"), widths["x_size"])
    if "context_size" in widths:
        pins |= dict.fromkeys(("key_size", "value_size"), widths["context_size"])
    pins["output_size"] = base.answer.shape[-1] if base.answer.ndim else 1
    return Packing(
        kind="layer",
        tensors=_roles(base, assignment, axes),
        output=_output(base, _output_axes(base, assignment, axes)),
        pins=dict(pins),
        assumptions=[],
    )


_FIELDS = ("query", "key", "value")


def _roles(base: BaseCall, assignment: RoleAssignment, axes: str) -> list[Role]:
    return [
        Role(name=name, role=role, axes=axes, dtype=str(base.feeds[name].dtype))
        for name, role in assignment.roles.items()
    ]


def _output(base: BaseCall, axes: str) -> Role:
    return Role(name=base.output, role="output", axes=axes, dtype=str(base.answer.dtype))


def _output_axes(base: BaseCall, assignment: RoleAssignment, axes: str) -> str:
    """Return the answer's axes: the query's, unless its items lie elsewhere."""
    at = assignment.layout.find("B")
    if at < 0 or base.answer.ndim != len(axes):
        return axes
    result = local_axis(base, assignment.first, at)
    if result is None or result == at or result > 1:
        return axes
    return axes[1] + axes[0] + axes[2:]


def _is_core(base: BaseCall, assignment: RoleAssignment) -> bool:
    """Tell whether no channel of the value mixes with others: a core projects nothing."""
    if "value" not in assignment.roles.values():
        return False
    value = assignment.of("value")
    at = base.feeds[value].ndim - 1
    size = base.feeds[value].shape[at]
    if size == 1:
        return False
    spread = [affected(base, value, at, index) for index in (0, size - 1)]
    others = tuple(range(base.answer.ndim - 1))
    reached = [change.any(axis=others) for change in spread if change.ndim == base.answer.ndim]
    if len(reached) < len(spread) or not all(channels.any() for channels in reached):
        return False
    return not (reached[0] & reached[1]).any()


def _apart(base: BaseCall, assignment: RoleAssignment, ports: Mapping[str, Port]) -> Packing:
    """Read a core with an axis of heads."""
    axes = assignment.layout
    answer = axes if base.answer.ndim == len(axes) else "BLM"
    pins: dict[str, int | str] = {}
    for letter, of_query, of_value in (
        ("H", "num_heads", "num_kv_heads"),
        ("D", "head_size", "value_head_size"),
    ):
        at = axes.index(letter)
        query, value = (ports[assignment.of(role)] for role in ("query", "value"))
        pins |= _fixed(query, at, of_query) | _fixed(value, at, of_value)
        if of_value not in pins and not _may_differ(base, assignment, letter):
            pins[of_value] = of_query
    return Packing(
        kind="core",
        tensors=_roles(base, assignment, axes),
        output=_output(base, answer),
        pins=pins,
        assumptions=["the inputs are projected heads: this is the core of an attention"],
    )


def _fixed(port: Port, at: int, field: str) -> dict[str, int | str]:
    size = None if port.shape is None else port.shape[at]
    return {field: size} if isinstance(size, int) else {}


def _may_differ(base: BaseCall, assignment: RoleAssignment, letter: str) -> bool:
    """Tell whether a core accepts twice as many query heads, or wider values than keys."""
    at = assignment.layout.index(letter)
    grown = ("query",) if letter == "H" else ("value",)
    changes = {
        name: np.concatenate([base.feeds[name]] * 2, axis=at)
        for name in (assignment.of(role) for role in grown)
    }
    answer = base.evaluate(changes)
    if answer is None or answer.ndim != base.answer.ndim:
        return False
    return answer.size == 2 * base.answer.size


def _packed(
    base: BaseCall, assignment: RoleAssignment, declared: GraphDeclaration, *, folded: bool
) -> Packing:
    """Read a core with heads side by side in the last axis, or folded into the items."""
    heads, kv_heads, how = (1, 1, "folded") if folded else _count_heads(base, assignment, declared)
    axes = assignment.layout.replace("E", "D" if folded else "M")
    axes = axes.replace("B", "F") if folded else axes
    query, value = (base.feeds[assignment.of(role)].shape[-1] for role in ("query", "value"))
    pins: dict[str, int | str] = {
        "head_size": query // heads,
        "value_head_size": value // kv_heads,
    }
    if not folded:
        pins |= {"num_heads": heads, "num_kv_heads": kv_heads}
    return Packing(
        kind="core",
        tensors=_roles(base, assignment, axes),
        output=_output(base, axes),
        pins=pins,
        assumptions=[
            "channels of the value stay apart: the inputs are projected heads",
            f"{heads} heads, {kv_heads} of them of keys and values ({how})",
        ],
    )


def _count_heads(
    base: BaseCall, assignment: RoleAssignment, declared: GraphDeclaration
) -> tuple[int, int, str]:
    """Return heads and key heads: declared, else by how many channels one channel reaches."""
    width = base.answer.shape[-1]
    query = _reach(base, assignment.of("query"))
    value = _reach(base, assignment.of("value"))
    heads = width // query if query and width % query == 0 else 1
    how = f"by behaviour: a channel of the query reaches {query} of {width}"
    groups = value or 1
    kv_heads = heads // groups if heads % groups == 0 else heads
    if declared.num_heads:
        heads, kv_heads = declared.num_heads, declared.num_kv_heads or declared.num_heads
        how = f"declared in {declared.where or 'the declaration'}"
    return heads, kv_heads, how


def _reach(base: BaseCall, name: str) -> int:
    """Count the channels of the answer reached by a change of an input's first channel."""
    change = affected(base, name, base.feeds[name].ndim - 1, 0)
    if change.ndim != base.answer.ndim:
        return 0
    return int(np.count_nonzero(change.any(axis=tuple(range(change.ndim - 1)))))
