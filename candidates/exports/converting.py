"""Graphs in a coarser precision, by the tools that onnxruntime brings along."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16

from ._exporting import quiet


def float16(graph: Path, path: Path, *, keep_io_types: bool = False) -> Path:
    """The graph in float16, its inputs and outputs too unless they are to stay float32."""
    with quiet():
        converted = convert_float_to_float16(onnx.load(graph), keep_io_types=keep_io_types)
    onnx.save(converted, path)
    return path


def dynamic_int8(graph: Path, path: Path) -> Path:
    """The graph with int8 weights, its activations rounded to eight bits as they come."""
    with quiet():
        quantize_dynamic(graph, path)
    return path
