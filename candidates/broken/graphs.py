"""Graphs that break in an export, or that only a graph can break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

import conformance

from ._graphs import (
    HEAD_SIZE,
    HEADS,
    WIDTH,
    Parts,
    at_settings,
    graph,
    node,
    put_together,
    saved,
    weights,
)


@graph("export.valid")
def declares_another_shape() -> ModelProto:
    """The file declares an answer one channel wider than the graph computes."""
    made = put_together(Parts())
    made.graph.output[0].type.tensor_type.shape.dim[2].dim_value = WIDTH + 1
    return made


@graph("export.dynamic-batch")
def batch_of_the_trace() -> Parts:
    """The batch of the traced example stands in the reshape of the query."""
    return Parts(splits={**Parts().splits, "q": (2, -1, HEADS, HEAD_SIZE)})


@graph("export.dynamic-length")
def length_of_the_trace() -> Parts:
    """The number of keys of the traced example stands in the reshape of the keys."""
    shape = (-1, 5, HEADS, HEAD_SIZE)
    return Parts(splits={**Parts().splits, "k": shape, "v": shape})


@graph("export.dynamic-length", "shape.output")
def length_of_one() -> Parts:
    """Traced with one query, the answer is read as one row however many there are."""
    last = [
        node("Reshape", "answer one_row", "rows"),
        node("Identity", "rows", "output"),
    ]
    return Parts(after=last, tensors={"one_row": np.array((-1, 1, WIDTH), np.int64)})


@graph("export.inputs-matter")
def mask_without_effect() -> Parts:
    """The mask is an input of the graph and of no node."""
    return Parts(masks={"mask": ("batch", 1, 1, "keys")})


@graph("export.matches-source", "numerics.scale", source=True)
def scale_lost_in_export() -> Parts:
    """The module scales its scores; the graph does not."""
    return Parts(scale=1.0)


@graph("export.matches-source", "numerics.golden", source=True)
def heads_swapped_in_export() -> Parts:
    """The graph projects values with another checkpoint's matrix than the module."""
    return Parts(tensors={"weight_v": weights()["v"][:, ::-1].copy()})


@graph("export.deterministic", "state.repeatable")
def dropout_left_in() -> Parts:
    """Exported in training mode: the weights are dropped at random."""
    nodes = [
        node("Softmax", "logits", "kept", axis=-1),
        node("Dropout", "kept ratio training", "weighted"),
    ]
    tensors = {"ratio": np.array(0.5, np.float32), "training": np.ones((), bool)}
    return Parts(inside=nodes, tensors=tensors)


@graph("export.names")
def names_of_the_tracer() -> ModelProto:
    """Inputs and outputs are called after the nodes that use them."""
    made = put_together(Parts())
    names = {"query": "onnx::MatMul_0", "key": "onnx::MatMul_1", "value": "onnx::MatMul_2"}
    names["output"] = "43"
    for port in (*made.graph.input, *made.graph.output):
        port.name = names[port.name]
    for one in made.graph.node:
        one.input[:] = [names.get(name, name) for name in one.input]
        one.output[:] = [names.get(name, name) for name in one.output]
    return made


@graph("export.self-contained")
def weights_of_another_export_beside() -> Path:
    """A file of weights that no tensor names lies beside the graph."""
    path = saved(put_together(Parts()), "WeightsOfAnotherExportBeside")
    path.with_name("model.onnx.data").write_bytes(bytes(WIDTH))
    return path


@graph("export.one-file")
def weights_beside() -> Path:
    """The weights of a small graph lie in a file of their own."""
    return saved(
        put_together(Parts()),
        "WeightsBeside",
        save_as_external_data=True,
        size_threshold=WIDTH * WIDTH,
        location="model.onnx.data",
    )


def _good(name: str) -> Any:
    """A correct graph as a candidate."""
    return conformance.graph(saved(put_together(Parts()), name), name=name)


@graph("export.optimisation-levels")
def wrong_unless_optimised() -> Any:
    """A kernel that the runtime fuses away when it optimises computes something else."""
    good = _good("WrongUnlessOptimised")
    return at_settings(good, lambda setting: setting.level == "disabled")


@graph("export.providers")
def wrong_on_the_accelerator() -> Any:
    """Another provider of the runtime computes something else than the CPU."""
    good = _good("WrongOnTheAccelerator")
    return at_settings(good, lambda setting: not setting.provider.startswith("CPU"))
