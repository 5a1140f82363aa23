"""Conversions to int8 that lost more than precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from ..exports import by_tracing, dynamic_int8
from ._kit import broken, cross, plain, rewrite


def _quantised(path: Path) -> Path:
    return dynamic_int8(by_tracing(cross(plain), path), path)


def _initializers(model: onnx.ModelProto, ending: str) -> list[onnx.TensorProto]:
    return [tensor for tensor in model.graph.initializer if tensor.name.endswith(ending)]


def _as_unsigned(model: onnx.ModelProto) -> None:
    for tensor in (*_initializers(model, "_quantized"), *_initializers(model, "_zero_point")):
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.int8:
            tensor.CopyFrom(numpy_helper.from_array(values.view(np.uint8), tensor.name))


def _stretch(model: onnx.ModelProto) -> None:
    for tensor in _initializers(model, "_scale"):
        values = np.asarray(numpy_helper.to_array(tensor) * np.float32(4))
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


@broken("numerics.golden", source=plain, alone=False)
def signed_read_as_unsigned(path: Path) -> Path:
    """Quantised matrices are read as unsigned bytes with the zero point of signed ones."""
    return rewrite(_quantised(path), _as_unsigned)


@broken("numerics.golden", source=plain, alone=False)
def step_of_another_range(path: Path) -> Path:
    """The steps of the quantised matrices are those of a range four times as wide."""
    return rewrite(_quantised(path), _stretch)
