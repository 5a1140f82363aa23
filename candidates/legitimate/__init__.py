"""Correct attentions in many styles, none of which may ever be flagged.

``conformance check candidates/legitimate`` checks them; ``candidates`` does not, to stay fast.
"""

from __future__ import annotations

from typing import Final

from conformance import Candidate

from . import (
    accumulators,
    backward,
    bands,
    buffers,
    by_torch,
    by_torch_layers,
    caches,
    combinations,
    devices,
    distances,
    empty_rows,
    exponentials,
    features,
    formulations,
    gathered,
    given,
    layers,
    layouts,
    loops,
    masks,
    mixed,
    modified,
    modules,
    normalised,
    online,
    operators,
    paged,
    precision,
    products,
    projected,
    projections,
    rearranged,
    rotary,
    scaling,
    sinks,
    split_keys,
    sums,
    tools,
    transformed,
)

MODULES: Final = (
    accumulators,
    backward,
    bands,
    buffers,
    by_torch,
    by_torch_layers,
    caches,
    combinations,
    devices,
    distances,
    empty_rows,
    exponentials,
    features,
    formulations,
    gathered,
    given,
    layers,
    layouts,
    loops,
    masks,
    mixed,
    modified,
    modules,
    normalised,
    online,
    operators,
    paged,
    precision,
    products,
    projected,
    projections,
    rearranged,
    rotary,
    scaling,
    sinks,
    split_keys,
    sums,
    tools,
    transformed,
)

CANDIDATES: Final[list[Candidate]] = [
    value for module in MODULES for value in vars(module).values() if isinstance(value, Candidate)
]
