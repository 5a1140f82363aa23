"""Graphs that are right until the runtime optimises them."""

from __future__ import annotations

from pathlib import Path

from ..exports import by_tracing, float16
from ..exports import sources as exported
from ..exports.described import CROSS
from ._kit import HIGHEST, broken


@broken("export.optimisation-levels", source=exported.cross, step=HIGHEST)
def killed_by_optimisation(path: Path) -> Path:
    """``nn.MultiheadAttention`` in float16 kills onnxruntime 1.31 at its highest level."""
    source = next(source for source in CROSS if source.name == "cross")
    return float16(by_tracing(source, path), path)
