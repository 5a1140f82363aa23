"""Graphs with weights to recover: exported or built, run in this process, roles by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from attention_layers import weights_of
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from conformance.graphs.opened import GraphProjections
from conformance.graphs.process import GraphProcess
from conformance.graphs.reading import GraphReading, Header, Port, Role
from conformance.graphs.sidecar import GraphDeclaration
from conformance.graphs.weights import find_weights

Case = Callable[[], nn.Module]
MODES = {1: "self", 2: "memory", 3: "separate"}
ROLES = {"self": ("x",), "memory": ("query", "context"), "separate": ("query", "key", "value")}
DTYPES = {1: "float32", 10: "float16", 11: "float64", 9: "bool", 7: "int64"}


class InProcess(GraphProcess):
    """Runs a graph in this process: the same requests, without a child to start."""

    def run(self, feeds: Any, *, setting: Any = None, taps: Sequence[str] = ()) -> dict[str, Any]:
        """The outputs and taps by name."""
        del setting
        if tuple(taps) not in self._sessions:
            model = onnx.load(self.path)
            for name in set(taps) - {output.name for output in model.graph.output}:
                model.graph.output.add().name = name
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            self._sessions[tuple(taps)] = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        session = self._sessions[tuple(taps)]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    def __init__(self, path: Path, limits: Any = None) -> None:
        super().__init__(path, limits)
        self._sessions: dict[tuple[str, ...], Any] = {}


def export(
    path: Path,
    module: nn.Module,
    inputs: Sequence[Tensor],
    *,
    dynamic: bool = True,
    axes: str = "BLE",
    opset: int = 17,
    dynamo: bool = False,
) -> Path:
    """A module as a graph with inputs named after their roles, ``output`` its answer."""
    names = ROLES[MODES[len(inputs)]]
    free = {
        name: {place: f"{name}_{letter}" for place, letter in enumerate(axes) if letter != "E"}
        for name in names
    }
    shapes: dict[str, Any] = {"dynamic_axes": free if dynamic else None}
    if dynamo:
        dynamic_shapes = tuple(
            dict.fromkeys(free[name], torch.export.Dim.DYNAMIC) if dynamic else None
            for name in names
        )
        shapes = {"dynamic_shapes": dynamic_shapes, "external_data": False, "verbose": False}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(inputs),
            str(path),
            input_names=list(names),
            output_names=["output"],
            opset_version=opset,
            dynamo=dynamo,
            **shapes,
        )
    return path


def build(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    stored: Mapping[str, Any],
    *,
    opset: int = 21,
    functions: Sequence[onnx.FunctionProto] = (),
) -> Path:
    """A graph of nodes with an answer ``output [B, L, E]``."""
    graph = helper.make_graph(
        list(nodes),
        "built",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [None, None, None])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    domains = {"": opset, "com.microsoft": 1} | {function.domain: 1 for function in functions}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(name, version) for name, version in domains.items()],
        functions=list(functions),
        ir_version=10,
    )
    onnx.save(model, path)
    return path


def header_of(path: Path) -> Header:
    """The ports of a graph."""
    graph = onnx.load(path, load_external_data=False).graph
    return Header(
        path=path,
        ir_version=10,
        opsets={},
        producer="",
        inputs=tuple(_port(port) for port in graph.input),
        outputs=tuple(_port(port) for port in graph.output),
        operators=frozenset(),
        external=(),
        size=path.stat().st_size,
    )


def _port(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    shape = tuple(
        axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None
        for axis in tensor.shape.dim
    )
    return Port(name=value.name, dtype=DTYPES[tensor.elem_type], shape=shape)


def find(
    path: Path,
    *,
    axes: str = "BLE",
    state_dict: Mapping[str, Tensor] | None = None,
    source: GraphProjections | None = None,
    declaration: GraphDeclaration | None = None,
    causal: str | None = None,
    kind: str = "layer",
    process: type[GraphProcess] = InProcess,
) -> GraphProjections:
    """The weights of a graph whose inputs are its tokens, in the order of their roles."""
    header = header_of(path)
    mode = MODES[len(header.inputs)]
    inputs = [
        Role(name=port.name, role=role, axes=axes, dtype=port.dtype)
        for port, role in zip(header.inputs, ROLES[mode], strict=True)
    ]
    output = header.outputs[0]
    reading = GraphReading(
        kind=kind,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        inputs=tuple(inputs),
        outputs=(Role(name=output.name, role="output", axes=axes, dtype=output.dtype),),
        causal=causal,
    )
    with process(path) as running:
        return find_weights(
            header,
            running,
            reading,
            declaration or GraphDeclaration(),
            state_dict=state_dict,
            source=source,
        )


def differing(projections: GraphProjections, module: nn.Module) -> list[str]:
    """The projections of a module that differ in any bit; zero biases may be missing."""
    assert projections.weights is not None, projections.assumptions
    wrong = []
    for name, right in weights_of(module).items():
        own = getattr(projections.weights, name)
        if right is None or own is None:
            if not (right is None and own is None) and bool(
                (own if right is None else right).any()
            ):
                wrong.append(name)
        elif not torch.equal(own, right.detach()):
            wrong.append(name)
    return wrong


def drawn(*shape: int) -> Any:
    """Standard normal numbers in float32, others for another shape."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def tokens(*widths: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """``[2, L, E]`` of each width, key and value as long as each other."""
    torch.manual_seed(3)
    return tuple(torch.randn(2, 4 if i == 0 else 5, w, dtype=dtype) for i, w in enumerate(widths))
