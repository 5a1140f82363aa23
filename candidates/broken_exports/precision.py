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


def _shift(model: onnx.ModelProto, ending: str, change: float, number: int = 0) -> None:
    found = [tensor for tensor in model.graph.initializer if tensor.name.endswith(ending)]
    values = numpy_helper.to_array(found[number])
    changed = (values * change if values.dtype.kind == "f" else values + change).astype(
        values.dtype
    )
    found[number].CopyFrom(numpy_helper.from_array(np.asarray(changed), found[number].name))


@broken("numerics.golden", source=plain, precision="int8-dynamic")
def wrong_zero_point(path: Path) -> Path:
    """The zero point of a quantised matrix is off by twenty."""
    return rewrite(_quantised(path), lambda model: _shift(model, "_zero_point", 20))


@broken("numerics.golden", source=plain, precision="int8-dynamic")
def scale_of_another_matrix(path: Path) -> Path:
    """A quantised matrix has the step of another one."""
    return rewrite(_quantised(path), lambda model: _shift(model, "_scale", 1.5, 1))
