"""Weights that are stored in 8 bits: ``scale · (stored - zero point)``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .wiring import Node, Wiring

Array = np.ndarray[Any, Any]

# Inputs: the matrix, its zero point, and for fused nodes its scale before it.
_MATRIX: Final = 1
_ZERO_POINT: Final = 3
_FUSED_SCALE: Final = 2


def dequantised(wiring: Wiring, above: set[str]) -> dict[str, Array]:
    """The matrices of integer products above a tensor, in the dtype of their scales."""
    found: dict[str, Array] = {}
    for node in wiring.graph.node:
        if not any(name in above for name in node.output):
            continue
        scale = None
        if node.op_type == "MatMulInteger":
            scale = _scale_behind(wiring, node)
        elif node.op_type == "DynamicQuantizeMatMul":
            scale = wiring.constant(node.input[_FUSED_SCALE])
        stored = wiring.constant(node.input[_MATRIX]) if scale is not None else None
        if stored is None or scale is None:
            continue
        zero = _optional(wiring, node, _ZERO_POINT)
        exact = (stored.astype(np.int32) - zero.astype(np.int32)) * scale.astype(np.float64)
        found[node.input[_MATRIX]] = exact.astype(scale.dtype)
    return found


def _optional(wiring: Wiring, node: Node, place: int) -> Array:
    named = node.input[place] if len(node.input) > place else ""
    value = wiring.constant(named) if named else None
    return np.zeros((), dtype=np.int32) if value is None else value


def _scale_behind(wiring: Wiring, node: Node) -> Array | None:
    """The stored scale that the integer product is multiplied by in the end."""
    name = node.output[0]
    while len(users := wiring.consumers[name]) == 1 and users[0].op_type in ("Cast", "Mul"):
        user = users[0]
        for other in user.input:
            if other != name and (scale := _stored_factor(wiring, other)) is not None:
                return scale
        name = user.output[0]
    return None


def _stored_factor(wiring: Wiring, name: str) -> Array | None:
    """A stored number or vector, or the one that a product of scales is made of."""
    direct = wiring.constant(name)
    if direct is not None:
        return direct
    node = wiring.producer.get(name)
    if node is None or node.op_type != "Mul":
        return None
    values = [wiring.constant(factor) for factor in node.input]
    return next((value for value in values if value is not None), None)
