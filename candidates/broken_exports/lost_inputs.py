"""Inputs that the graph has lost, or that no longer have an influence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from ..exports import by_export, by_tracing
from ..exports import sources as exported
from ..exports.described import CROSS
from ..exports.sources import seeded
from ._kit import KEPT, Plain, broken, cross, node_of, plain, rewrite


class Leaving(Plain):
    """Takes the number of masked keys out of torch: the mask is a suffix, it says."""

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        kept = int(mask.sum(dim=-1).max())
        positions = torch.arange(mask.shape[-1])
        return scores.masked_fill(positions >= kept, float("-inf"))


leaving: Final = seeded(Leaving)


@broken("export.inputs-matter", source=exported.cross)
def same_tensor_thrice(path: Path) -> Path:
    """Exported with one tensor as query, key and value: torch took the way of self-attention."""
    source = next(source for source in CROSS if source.name == "cross")
    query = source.example()[0]
    return by_export(source, path, example=(query, query, query))


@broken("export.inputs-matter", source=leaving)
def mask_left_torch(path: Path) -> Path:
    """The mask became a Python number: its traced values are constants, only its shape is read."""
    return by_tracing(cross(leaving, KEPT), path)


@broken("export.inputs-matter", source=plain)
def value_read_as_key(path: Path) -> Path:
    """The projection of the values is fed with the keys after a tool merged equal inputs."""
    by_tracing(cross(plain), path)

    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.input[:] = ["key" if name == "value" else name for name in node.input]

    return rewrite(path, edit)


@broken("export.inputs-matter", source=plain)
def mask_folded_to_a_constant(path: Path) -> Path:
    """A simplifier ran once with a full mask and made its comparison a constant."""
    by_tracing(cross(plain, KEPT), path)

    def edit(model: onnx.ModelProto) -> None:
        where = node_of(model, "Where")
        nobody = numpy_helper.from_array(np.zeros((1, 1, 1, 1), dtype=bool), "nobody")
        model.graph.initializer.append(nobody)
        where.input[0] = "nobody"

    return rewrite(path, edit)
