"""Projections and biases that an attention node brings itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

import numpy as np

from .core import Core
from .probing import ROUNDINGS, AffineMap
from .unreadable import UnreadableError
from .wiring import Wiring

Array = np.ndarray[Any, Any]
PARTS: Final = ("query", "key", "value")


def node_values(wiring: Wiring, core: Core) -> dict[str, Array]:
    """What a node adds or multiplies by itself, in parts: ``query bias`` and the like."""
    found: dict[str, Array] = {}
    for kind, name in (("bias", core.bias), ("matrix", core.matrix)):
        stored = wiring.constant(name) if name else None
        if name and stored is None:
            msg = f"{name}, the {kind} of the attention node, is no stored tensor"
            raise UnreadableError(msg)
        if stored is None:
            continue
        widths = core.widths or (stored.shape[-1] // len(PARTS),) * len(PARTS)
        pieces = np.split(stored, list(accumulate(widths))[:-1], axis=-1)
        found |= {f"{part} {kind}": piece for part, piece in zip(PARTS, pieces, strict=True)}
    return found


def with_bias(found: AffineMap, bias: Array | None) -> AffineMap:
    """A map with what the node adds to it behind."""
    if bias is None:
        return found
    added = bias.astype(np.float64).reshape(found.bias.shape)
    return replace(found, bias=found.bias + added)


def map_inside(part: str, core: Core, values: dict[str, Array]) -> AffineMap:
    """The map of a node that projects tokens itself: its matrix is ``[E, H·D]``."""
    matrix = values[f"{part} matrix"]
    heads = core.num_heads or 1
    rows = matrix.astype(np.float64).T.reshape(heads, -1, len(matrix))
    noise = ROUNDINGS * float(np.finfo(matrix.dtype).eps) * np.abs(rows)
    plain = AffineMap(matrix=rows, bias=np.zeros(rows.shape[:2]), noise=noise, order="items")
    return with_bias(plain, values.get(f"{part} bias"))
