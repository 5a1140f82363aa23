"""What a graph stores: initializers, constants, and what it computes of these alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from .quantised import dequantised
from .questions import Questions
from .wiring import Wiring

Array = np.ndarray[Any, Any]

# A vector that is shorter is a size or a number, never a weight.
_SMALLEST = 2


def stored_above(wiring: Wiring, questions: Questions, name: str) -> dict[str, Array]:
    """The float tensors that a tensor is computed from and no input reaches, by name.

    Those that the graph computes, a transposed matrix for one, are asked of it; those that it
    stores in 8 bits are dequantised.
    """
    above = wiring.above(name)
    found = dequantised(wiring, above)
    computed = []
    for inner in sorted(above):
        if wiring.reached.get(inner):
            continue
        value = wiring.constant(inner)
        if value is None and _is_read_by_tokens(wiring, inner, above):
            computed.append(inner)
        elif value is not None and value.dtype.kind == "f" and value.size >= _SMALLEST:
            found[inner] = value
    if computed:
        asked = questions.ask(
            {role: np.zeros(questions.shape(role)) for role in questions.tokens}, computed
        )
        found.update({inner: asked[inner] for inner in computed if asked[inner].dtype.kind == "f"})
    return found


def _is_read_by_tokens(wiring: Wiring, name: str, above: set[str]) -> bool:
    """Whether a tensor without inputs meets something with inputs: a weight where it is used."""
    if wiring.producer.get(name) is None:
        return False
    return any(
        any(wiring.reached.get(made) and made in above for made in user.output)
        for user in wiring.consumers[name]
        if user.op_type not in ("Reshape", "Expand", "Slice", "Tile", "Gather", "Squeeze")
    )
