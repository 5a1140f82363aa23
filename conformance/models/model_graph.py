"""The graph of a whole model, read without its weights."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from ..graphs.parsing import bytes_of, embedded, external_files, inlined, read_model
from ..graphs.protocol import Array, GraphRefused
from ..graphs.weights.wiring import Node, Wiring
from .integer_operators import write_out_integer_operators
from .sizes import Shape, Sizes

# Tensors with more bytes are weights: neither a scale nor the table of a mask.
_LARGEST_KEPT: Final = 4 << 20
_SCOPES: Final = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A graph whose weights are left out.

    It has nodes in the places of local functions and of operators on integers; ``named`` are the
    tensors of the file. Shapes, types and numbers are worked out when the first of them is needed.
    """

    path: Path
    model: ModelProto
    wiring: Wiring
    named: frozenset[str] = frozenset()

    @cached_property
    def _sizes(self) -> Sizes:
        return Sizes(self.model, self.wiring, self.stored)

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The names of the caller's inputs."""
        stored = self.wiring.initializers
        return frozenset(port.name for port in self.model.graph.input if port.name not in stored)

    @cached_property
    def answered(self) -> frozenset[str]:
        """The tensors that an answer is computed from."""
        return frozenset(self.wiring.above(*(port.name for port in self.model.graph.output)))

    @cached_property
    def input_types(self) -> dict[str, int]:
        """The element types of the caller's inputs in the file."""
        ports = (port for port in self.model.graph.input if port.name in self.inputs)
        return {port.name: port.type.tensor_type.elem_type for port in ports}

    @cached_property
    def opset(self) -> int:
        """The version of the standard's operators."""
        return max(
            (entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")),
            default=1,
        )

    def type(self, name: str) -> int:
        """Return the element type of a tensor, by onnx's number; 0 if unknown."""
        return self._sizes.types.get(name, 0)

    def shape(self, name: str) -> Shape:
        """The shape of a tensor, () where nothing is known."""
        return self._sizes.shapes.get(name) or ()

    def rank(self, name: str) -> int | None:
        """The number of axes, None where it is unknown."""
        shape = self._sizes.shapes.get(name)
        return None if shape is None else len(shape)

    def numbers(self, name: str) -> Array | None:
        """A small tensor worked out from constants and shapes, in float64; NaN: unknown sizes."""
        return self._sizes.numbers(name)

    def is_known(self, name: str) -> bool:
        """Whether every number of a small tensor follows from the file."""
        numbers = self.numbers(name)
        return numbers is not None and not any(map(math.isnan, numbers.reshape(-1)))

    def step_of(self, node: Node) -> tuple[float, float, float] | None:
        """Return the step of a ``QuantizeLinear`` and the limits of its result; None if unknown."""
        step, zero = (
            self.scalar(node.input[at]) if at < len(node.input) and node.input[at] else other
            for at, other in ((1, None), (2, 0.0))
        )
        if step is None or zero is None:
            return None
        least, most = self._sizes.limits(node)
        return step, (least - zero) * step, (most - zero) * step

    def scalar(self, name: str) -> float | None:
        """Return the constant number of a tensor of one element, else None."""
        value = self.numbers(name)
        if value is None or value.size != 1:
            return None
        number = float(value.reshape(-1)[0])
        return None if math.isnan(number) else number

    def stored(self, name: str) -> Array | None:
        """Return a constant that is no weight, else None.

        Exporters may put the smallest number into the file of the weights.
        """
        tensor = self.wiring.initializers.get(name)
        if tensor is None:
            return self.wiring.constant(name)
        if tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        if bytes_of(tensor, math.prod(tensor.dims)) > _LARGEST_KEPT:
            return None
        try:
            external_files([tensor], self.path)
            return numpy_helper.to_array(embedded(tensor, self.wiring.folder))
        except (GraphRefused, OSError, ValueError):
            return None

    def scope(self, node: Node) -> str:
        """Return the path of the module a node comes from, "" where the exporter left none.

        torch's newer exporter writes the path into the node's metadata, the older into its name.
        """
        for entry in node.metadata_props:
            if entry.key == _SCOPES:
                return _deepest_module(entry.value)
        parts = node.name.strip("/").split("/")
        return ".".join(parts[:-1]) if node.name.startswith("/") else ""


def _deepest_module(text: str) -> str:
    """Return the innermost module of a list of scopes, whose last entry is an operation."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    names = [str(scope) for scope in scopes] if isinstance(scopes, list) else []
    return names[-2] if len(names) > 1 else ""


def read_graph(path: Path) -> ModelGraph:
    """The graph in a file, external data unread; raises GraphRefused for what is no graph."""
    model = read_model(path)
    weights = [t for t in model.graph.initializer if len(t.raw_data) > _LARGEST_KEPT]
    for tensor in weights:
        _leave_out(tensor)
    if weights:  # what was left out of a message is freed with the message
        model = ModelProto.FromString(model.SerializeToString())
    named = frozenset(filter(None, _names(model.graph)))  # a result may be left out
    model = inlined(model)
    write_out_integer_operators(model)
    return ModelGraph(path, model, Wiring(model.graph, path.parent), named)


def _names(graph: GraphProto) -> Iterator[str]:
    for held in (*graph.input, *graph.initializer):
        yield held.name
    for node in graph.node:
        yield from node.output


def _leave_out(tensor: TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
