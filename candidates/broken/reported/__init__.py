"""Mistakes with the mechanism of a bug that was reported somewhere and mended there.

Each class acts out one mechanism on top of a correct attention, and its ``link`` is the report.
What is said of a library holds for a version before the mend. ``docs/mechanisms.md`` is the table
of them all: which were caught by the clauses of the day they were written, and which are now.
"""

from __future__ import annotations

from typing import Final

from . import (  # importing a file declares its mistakes
    arithmetic,
    backward,
    caches,
    decoding,
    distances,
    layer_paths,
    layer_shapes,
    loops,
    mask_reads,
    masks,
    memory,
    merging,
    packed,
    paths,
    rotations,
    sequences,
    single_queries,
    sink_logits,
    training,
    turned,
)

__conformance__: Final[tuple[str, ...]] = ()

__all__ = [
    "arithmetic",
    "backward",
    "caches",
    "decoding",
    "distances",
    "layer_paths",
    "layer_shapes",
    "loops",
    "mask_reads",
    "masks",
    "memory",
    "merging",
    "packed",
    "paths",
    "rotations",
    "sequences",
    "single_queries",
    "sink_logits",
    "training",
    "turned",
]
