"""Files that do not hold what they say: stale weights, lying headers, names used twice."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx
import torch
from torch import Tensor, nn

from ..exports import by_export, by_tracing
from ..exports.sources import WIDTH, seeded
from ._kit import NONE, Plain, broken, cross, plain, rewrite

other: Final = seeded(Plain, seed=1)


class NamedOutput(Plain):
    """Has a parameter of the name that the file gives to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.eye(WIDTH))

    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads) @ self.output


named_output: Final = seeded(NamedOutput)


@broken("export.matches-source", source=plain, alone=False)
def stale_weights(path: Path) -> Path:
    """The file of weights beside the graph is that of another checkpoint."""
    weights = path.with_name(f"{path.name}.data")
    _save_apart(by_tracing(cross(other), path))
    stale = weights.read_bytes()
    weights.unlink()
    _save_apart(by_tracing(cross(plain), path))
    weights.write_bytes(stale)
    return path


def _save_apart(path: Path) -> None:
    """Move a graph's weights to a file beside it."""
    onnx.save(
        onnx.load(path),
        path,
        save_as_external_data=True,
        location=f"{path.name}.data",
        size_threshold=0,
    )


@broken(source=named_output, refused=True)
def name_used_twice(path: Path) -> Path:
    """The exporter names the output as asked, although a weight has that name already."""
    return by_export(cross(named_output), path)


@broken(source=plain, refused=True)
def opset_that_lies(path: Path) -> Path:
    """The header names an opset older than the operators' attributes."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 11

    return rewrite(path, edit)


@broken("export.valid", source=plain, step=NONE)
def output_shape_that_lies(path: Path) -> Path:
    """The header says the output has one axis fewer than it has."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        del model.graph.output[0].type.tensor_type.shape.dim[1]

    return rewrite(path, edit)
