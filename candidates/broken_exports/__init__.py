"""Broken exports, each made as people really break them, to see that the harness catches it.

``BROKEN`` is the catalogue: a sentence, the clauses that must fail, the step that must be blamed
and a function that makes the file. Nothing is exported when this is imported.
"""

from __future__ import annotations

from typing import Final

from . import (  # importing a file declares its exports
    edited,
    files,
    fills,
    fused,
    lost_inputs,
    masks,
    modules,
    precision,
    runtime,
    tracing,
)
from ._kit import DECLARED, BrokenExport

BROKEN: Final[tuple[BrokenExport, ...]] = tuple(sorted(DECLARED, key=lambda made: made.name))

__conformance__: Final[tuple[str, ...]] = ()

__all__ = [
    "BROKEN",
    "BrokenExport",
    "edited",
    "files",
    "fills",
    "fused",
    "lost_inputs",
    "masks",
    "modules",
    "precision",
    "runtime",
    "tracing",
]
