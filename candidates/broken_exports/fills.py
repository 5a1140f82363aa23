"""What takes the place of a masked score: too small, or too large, or minus infinity everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from ..exports import by_tracing, float16
from ..exports import sources as exported
from ..exports.described import CROSS, VARIANTS
from ..exports.sources import masked_attention
from ._kit import KEPT, broken, cross, plain, rewrite

FLOATS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
# Other constants, scales and sizes, are smaller than this.
SCALES: Final = 1e3


def _fill(model: onnx.ModelProto, values: float) -> None:
    """Give every fill of masked scores in a graph another value."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.t.data_type in FLOATS:
                found = numpy_helper.to_array(attribute.t)
                if found.size == 1 and (found < -SCALES).all():
                    new = np.full_like(found, values)
                    attribute.t.CopyFrom(numpy_helper.from_array(new, attribute.t.name))


@broken("export.matches-source", source=exported.cross_drop, alone=False)
def empty_rows_became_nan(path: Path) -> Path:
    """Rows without any key are zeros in torch and NaN in the graph, which has no such rule."""
    return by_tracing(next(source for source in CROSS if source.name == "cross_drop"), path)


@broken("mask.single-key", source=masked_attention, empty_rows="mean-of-all")
def fill_made_safe_for_float16(path: Path) -> Path:
    """Converted to float16, with a fill that somebody found safe there: -1000."""
    source = next(source for source in VARIANTS if source.name == "masked_attention")
    float16(by_tracing(source, path), path)
    return rewrite(path, lambda model: _fill(model, -1e3))


@broken("mask.golden", source=masked_attention, empty_rows="mean-of-all")
def fill_of_minus_thirty(path: Path) -> Path:
    """Somebody made the fill small enough for float16: -30."""
    source = next(source for source in VARIANTS if source.name == "masked_attention")
    by_tracing(source, path)
    return rewrite(path, lambda model: _fill(model, -30.0))


@broken("export.matches-source", source=masked_attention, alone=False)
def fill_overflowed(path: Path) -> Path:
    """Cast to float16 and back, the fill of -1e9 is minus infinity, and empty rows are NaN."""
    source = next(source for source in VARIANTS if source.name == "masked_attention")
    by_tracing(source, path)
    return rewrite(path, lambda model: _fill(model, -np.inf))


@broken("mask.golden", source=plain)
def fill_of_zero(path: Path) -> Path:
    """The fill became 0: a masked key counts as one with a score of zero."""
    by_tracing(cross(plain, KEPT), path)
    return rewrite(path, lambda model: _fill(model, 0.0))
