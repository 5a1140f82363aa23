"""Exports of correct attentions, made at test time by both of torch's exporters.

``export_all(folder)`` writes them; ``candidates.exports.sources`` holds the modules that they come
from, for ``conformance check model.onnx --source candidates.exports.sources:NAME``. Importing this
needs no exporter: only making a graph does (``pip install onnxscript`` for the newer one).
"""

from __future__ import annotations

from ._describing import Export, Input, Source
from ._exporting import by_export, by_tracing
from .catalogue import EXPORTS, export_all
from .converting import dynamic_int8, float16

__all__ = [
    "EXPORTS",
    "Export",
    "Input",
    "Source",
    "by_export",
    "by_tracing",
    "dynamic_int8",
    "export_all",
    "float16",
]
