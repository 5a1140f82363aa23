"""Attention layers as hand-made ONNX graphs, opened as the adapter opens them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import conformance
from conformance._golden import golden
from conformance.adapters.graph_forward import GraphForward, mask_pairs
from conformance.declare.candidate import Candidate
from conformance.graphs.opened import GraphProjections, OpenedGraph, Stages
from conformance.graphs.process import DEFAULT, Array, Feeds, GraphProcess, Setting
from conformance.graphs.reading import Axis, GraphReading, Header, Port, Role
from conformance.graphs.sidecar import GraphDeclaration

WIDTH: Final = 8
HEADS: Final = 2
SIZE: Final = WIDTH // HEADS
STAGES: Final = Stages(
    query="q", key="k", value="v", scores="logits", weights="weights", heads="merged"
)
Outputs = dict[str, Array]
Run = Callable[[Feeds], Outputs]
Answers = Callable[[Feeds, Setting, Run], Outputs]


def drawn_weights(seed: int = 5) -> golden.ProjectionWeights:
    """Projections of a layer with two heads of size four, with biases, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def matrix() -> Tensor:
        return torch.randn(WIDTH, WIDTH, generator=generator) * 0.6

    return golden.ProjectionWeights(
        **{name: matrix() for name in "qkvo"},
        **{f"{name}_bias": torch.randn(WIDTH, generator=generator) for name in "qkvo"},
    )


WEIGHTS: Final = drawn_weights()


class Layer(nn.Module):
    """The same layer in torch: keys where ``mask`` is False are hidden."""

    def __init__(
        self, weights: golden.ProjectionWeights = WEIGHTS, *, scale: float = SIZE**-0.5
    ) -> None:
        super().__init__()
        self.weights, self.scale = weights, scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Tokens ``[B, L, 8]``, mask bool ``[B, K]``; rows without keys are NaN."""
        heads = {
            name: nn.functional.linear(
                tokens, getattr(self.weights, name), getattr(self.weights, f"{name}_bias")
            )
            .unflatten(-1, (HEADS, SIZE))
            .transpose(1, 2)
            for name, tokens in zip("qkv", (query, key, value), strict=True)
        }
        logits = heads["q"] @ heads["k"].transpose(-1, -2) * self.scale
        logits = logits.masked_fill(~mask[:, None, None], float("-inf"))
        merged = (logits.softmax(-1) @ heads["v"]).transpose(1, 2).flatten(2)
        return nn.functional.linear(merged, self.weights.o, self.weights.o_bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A graph: the layer as it should be, but for what is changed.

    batch
        The size that the reshapes of heads fix; 0 leaves it open.
    length
        The same of the keys' reshape.
    masked
        Whether the mask is read at all.
    fill
        What hides a logit.
    axes
        What the file says of batch, queries and keys.
    """

    weights: golden.ProjectionWeights = WEIGHTS
    scale: float = SIZE**-0.5
    batch: int = 0
    length: int = 0
    masked: bool = True
    fill: float = float("-inf")
    axes: tuple[Axis, Axis, Axis] = ("batch", "queries", "keys")


def model_of(plan: Plan) -> onnx.ModelProto:
    """The plan as a model of opset 18."""
    batch, queries, keys = plan.axes
    tokens = {"query": queries, "key": keys, "value": keys}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, length, WIDTH])
        for name, length in tokens.items()
    ]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, [batch, keys]))
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, queries, WIDTH])
    constants = {f"w{name}": getattr(plan.weights, name).T.numpy() for name in "qkvo"}
    constants |= {f"b{name}": getattr(plan.weights, f"{name}_bias").numpy() for name in "qkvo"}
    constants |= {
        "cut": np.array([plan.batch, 0, HEADS, SIZE]),
        "cut_keys": np.array([plan.batch, plan.length, HEADS, SIZE]),
        "side_by_side": np.array([plan.batch, 0, WIDTH]),
        "scale": np.array(plan.scale, np.float32),
        "fill": np.array(plan.fill, np.float32),
        "middle": np.array([1, 2]),
    }
    initializers = [
        numpy_helper.from_array(np.ascontiguousarray(value), name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(_nodes(plan), "layer", inputs, [output], initializers)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _nodes(plan: Plan) -> list[onnx.NodeProto]:
    node = helper.make_node
    nodes = []
    for name, tokens in (("q", "query"), ("k", "key"), ("v", "value")):
        cut = "cut" if name == "q" else "cut_keys"
        nodes += [
            node("MatMul", [tokens, f"w{name}"], [f"{name}1"]),
            node("Add", [f"{name}1", f"b{name}"], [f"{name}2"]),
            node("Reshape", [f"{name}2", cut], [f"{name}3"]),
            node("Transpose", [f"{name}3"], [name], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["products"]),
        node("Mul", ["products", "scale"], ["scores"]),
        node("Unsqueeze", ["mask", "middle"], ["kept"]),
    ]
    if plan.masked:
        nodes.append(node("Where", ["kept", "scores", "fill"], ["logits"]))
    else:
        nodes.append(node("Identity", ["scores"], ["logits"]))
    return [
        *nodes,
        node("Softmax", ["logits"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["weighed"]),
        node("Transpose", ["weighed"], ["weighed_t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["weighed_t", "side_by_side"], ["merged"]),
        node("MatMul", ["merged", "wo"], ["projected"]),
        node("Add", ["projected", "bo"], ["output"]),
    ]


def header_of(path: Path, plan: Plan) -> Header:
    """What the file says."""
    batch, queries, keys = plan.axes
    tokens = [("query", queries), ("key", keys), ("value", keys)]
    ports = [Port(name=name, dtype="float32", shape=(batch, n, WIDTH)) for name, n in tokens]
    return Header(
        path=path,
        ir_version=9,
        opsets={"": 18},
        producer="",
        inputs=(*ports, Port(name="mask", dtype="bool", shape=(batch, keys))),
        outputs=(Port(name="output", dtype="float32", shape=(batch, queries, WIDTH)),),
        operators=frozenset({"::MatMul"}),
        external=(),
        size=path.stat().st_size,
    )


def reading_of(plan: Plan, pins: Mapping[str, Any] | None = None) -> GraphReading:
    """What its inputs are."""
    widths = {"query_size": WIDTH, "key_size": WIDTH, "value_size": WIDTH, "output_size": WIDTH}
    baked = {"batch": plan.batch} if plan.batch else {}
    baked |= {"key_length": plan.length} if plan.length else {}
    return GraphReading(
        kind="layer",
        mode="separate",
        inputs=(
            *(Role(name=name, role=name, axes="BLE") for name in ("query", "key", "value")),
            Role(name="mask", role="keep", axes="BK", dtype="bool"),
        ),
        outputs=(Role(name="output", role="output", axes="BLE"),),
        pins={**widths, **baked, **(pins or {})},
        baked=baked,
    )


class Altered(GraphProcess):
    """A process whose answers are altered on their way out, as another runtime would give them."""

    def __init__(self, path: Path, alter: Answers, providers: list[str] | None = None) -> None:
        super().__init__(path)
        self._alter, self._providers = alter, providers

    def run(
        self, feeds: Feeds, *, setting: Setting = DEFAULT, taps: Sequence[str] = ()
    ) -> dict[str, Array]:
        """What ``alter(feeds, setting, run)`` gives."""

        def run(fed: Feeds) -> dict[str, Array]:
            standard = dataclasses.replace(setting, provider=DEFAULT.provider)
            return super(Altered, self).run(fed, setting=standard, taps=taps)

        return self._alter(feeds, setting, run)

    def providers(self) -> list[str]:
        """Those that are pretended to be there."""
        return super().providers() if self._providers is None else self._providers


def opened(
    folder: Path,
    plan: Plan,
    *,
    source: nn.Module | None = None,
    process: Callable[[Path], GraphProcess] = GraphProcess,
    weights: golden.ProjectionWeights | None = WEIGHTS,
    pins: Mapping[str, Any] | None = None,
    stages: Stages = STAGES,
    **promises: Any,
) -> Candidate:
    """The plan's graph as a candidate; ``weights`` are those that it is judged by."""
    path = folder / "layer.onnx"
    onnx.save(model_of(plan), path)
    reading, running = reading_of(plan, pins), process(path)

    def forward(setting: Setting) -> GraphForward:
        return GraphForward(lambda feeds: running.run(feeds, setting=setting), reading, HEADS)

    graph = OpenedGraph(
        header=header_of(path, plan),
        declaration=GraphDeclaration(),
        process=running,
        reading=reading,
        projections=GraphProjections(weights=weights, num_heads=HEADS, how="source", stages=stages),
        forward=forward,
        source=None if source is None else eager(source, reading),
        exported=None if source is None else eager(source, reading),
    )
    declared = {
        "masks": ["keep"],
        "mask_shapes": ["BK"],
        "without": ["gradients"],
        "geometry": dict(reading.pins),
        **promises,
    }
    made: Candidate = conformance.fixed_layer(
        forward(DEFAULT), weights, num_heads=HEADS, name="graph", **declared
    )
    declaration = dataclasses.replace(made.declaration, mask_pairs=mask_pairs(reading))
    return dataclasses.replace(made, declaration=declaration, graph=graph)


def eager(module: nn.Module, reading: GraphReading) -> GraphForward:
    """A torch module that takes the graph's inputs by name, called as the graph is."""

    def run(feeds: Feeds) -> dict[str, Array]:
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
        with torch.no_grad():
            return {"output": module(**tensors).numpy()}

    return GraphForward(run, reading, HEADS)
