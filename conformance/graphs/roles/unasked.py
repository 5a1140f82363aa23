"""The reading of a graph that cannot be asked: it hangs, or kills its process, when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...errors import UsageError
from ..header import Header, Port
from ..reading import Reading, Role
from ..sidecar import Told
from . import names
from .assigning import MODES, ROLES
from .plans import INTEGERS, Plan, plans, usual

_WIDTHS: Final = {"self": ("x",) * 3, "memory": ("query", "context", "context")}
_FIELDS: Final = {"B": "batch", "Q": "query_length", "K": "key_length"}


def read_unasked(header: Header, told: Told) -> Reading:
    """Roles by names, types and the order of the inputs; raises UsageError without a query.

    It serves to put the question to the graph again, so that its silence becomes a verdict.
    """
    plan = next((plan for plan in plans(header, told, usual(())) if plan.shapes()), None)
    if plan is None or not header.outputs:
        msg = f"{header.path}: no input can be a query, and the graph gives no answer when asked"
        raise UsageError(msg)
    roles = _tensor_roles(plan.tensors, told)
    shapes = plan.shapes() or {}
    mode = MODES[len(plan.tensors)]
    known = {role: shapes[name] for name, role in roles.items()}
    inputs = [
        *(
            Role(name=n, role=role, axes=plan.layout, dtype=_dtype(header, n))
            for n, role in roles.items()
        ),
        *(_mask(port, axes) for port, axes in plan.masks),
        *(
            Role(
                name=p.name, role="constant", dtype=p.dtype, value=np.zeros(shapes[p.name], p.dtype)
            )
            for p in (*plan.pasts, *plan.constants)
        ),
    ]
    return Reading(
        kind="core" if "D" in plan.layout else "layer",
        mode=mode,  # type: ignore[arg-type]
        inputs=tuple(inputs),
        outputs=(
            Role(
                name=header.outputs[0].name,
                role="output",
                axes=plan.layout,
                dtype=header.outputs[0].dtype,
            ),
        ),
        pins=_pins(plan, mode, known, header.outputs[0]),
        assumptions=("roles by names and order alone: the graph gave no answer when it was asked",),
    )


def _tensor_roles(tensors: Sequence[Port], told: Told) -> dict[str, str]:
    """By declaration, then by names where they speak of different roles, then by order."""
    roles = ROLES[len(tensors)]
    found: dict[str, str] = {}
    for port in tensors:
        said = told.inputs.get(port.name, {}).get("role")
        named = [role for role in roles if names.suggests(port.name, role)]
        found[port.name] = said or (named[0] if len(named) == 1 else "")
    if sorted(found.values()) == sorted(roles):
        return found
    return dict(zip((port.name for port in tensors), roles, strict=True))


def _mask(port: Port, axes: str) -> Role:
    if port.dtype in INTEGERS:
        role = "keep_int" if "K" in axes else "lengths"
    else:
        role = "keep" if port.dtype == "bool" else "bias"
    return Role(name=port.name, role=role, axes=axes, dtype=port.dtype)


def _dtype(header: Header, name: str) -> str:
    return header.input(name).dtype


def _pins(
    plan: Plan, mode: str, shapes: dict[str, tuple[int, ...]], output: Port
) -> dict[str, int | str]:
    """Widths, and the sizes that the file fixes."""
    pins: dict[str, int | str] = {}
    for port in plan.tensors:
        for letter, size in zip(plan.layout, port.shape or (), strict=False):
            field = _FIELDS.get(
                "Q" if letter == "L" and port is plan.tensors[plan.lead] else letter
            )
            if field is not None and isinstance(size, int):
                pins[field] = size
    if mode == "self":
        pins["key_length"] = "query_length"
    if "E" not in plan.layout:
        return pins
    order = _WIDTHS.get(mode, ("query", "key", "value"))
    width = plan.layout.index("E")
    for field, role in zip(("query_size", "key_size", "value_size"), order, strict=True):
        pins[field] = shapes[role][width]
    last = (output.shape or (None,))[-1]
    return {**pins, "output_size": last if isinstance(last, int) else pins["query_size"]}
