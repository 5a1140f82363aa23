"""An attention of a model as a separate small graph, from heads to answer.

Query, key and value enter as ``[B, H, L, D]`` (or folded or packed as in the model), masks
unchanged. The nodes between are copied; factors, turns and repetitions before them are written
anew, since the model computes their sizes elsewhere. No weights are read.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..base.files import scratch
from ..graphs.weights.attention_core import contraction_of
from ..graphs.weights.wiring import Node, UnreadableError
from .model_graph import ModelGraph
from .operands import Edge, MaskInput
from .site import Site
from .softmax_site import QUANTISING

_PACKED: Final = "BLM"
_WITH_TENSOR_AXES: Final = 13
_FLOAT: Final = TensorProto.FLOAT
PARTS: Final = ("query", "key", "value")
CACHES: Final = ("past_key", "past_value")
SINKS: Final = "sinks"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """An attention as a graph, with the role and the axes of each input.

    digest: equal for attentions of a model that differ only in weights and names.
    """

    model: ModelProto
    inputs: dict[str, dict[str, str]]
    output_axes: str
    digest: str


class CutFile:
    """The file of a cut in a folder of its own, removed with this object."""

    def __init__(self, made: Cut, name: str) -> None:
        folder = tempfile.mkdtemp(prefix="conformance-site-", dir=scratch())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = Path(folder) / f"{name}.onnx"
        onnx.save(made.model, self.path)


def cut(graph: ModelGraph, site: Site) -> Cut:
    """Cut out one attention; raises UnreadableError where it reads unavailable tensors."""
    return _Cutting(site.graph or graph, site).cut()


@dataclass(kw_only=True)
class _Parts:
    nodes: list[NodeProto] = field(default_factory=list)
    numbers: list[TensorProto] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


class _Cutting:
    def __init__(self, graph: ModelGraph, site: Site) -> None:
        self._graph, self._site, self._parts = graph, site, _Parts()
        folded = "F" in site.output_letters and not site.heads
        self._axes = "FLD" if folded else "BHLD"
        if site.output_letters == _PACKED:
            self._axes = _PACKED

    def cut(self) -> Cut:
        site = self._site
        inputs = {part: {"role": part, "axes": self._axes} for part in PARTS}
        for part, edge in site.edges.items():
            self._enter(part, edge)
        for number, mask in enumerate(site.masks):
            name = "mask" if not number else f"mask_{number + 1}"
            self._parts.names[mask.name] = self._bias_of(mask, name)
            inputs[name] = {"role": mask.role, "axes": mask.axes}
        for role, tensor in zip(CACHES, site.cache, strict=False):
            self._parts.names[tensor] = role
            inputs[role] = {"role": role, "axes": "BHLD"}
        if site.sinks is not None:
            self._parts.names[site.sinks.tensor] = self._sinks()
            inputs[SINKS] = {"role": SINKS, "axes": "H"}
        for node in site.inside:
            if node.op_type in ("Reshape", "Squeeze", "Unsqueeze"):
                self._refold(node)
            elif node.op_type in QUANTISING:
                self._parts.names[node.output[0]] = self._name(node, 0, node.input[0])
            else:
                self._copy(node)
        self._leave()
        model = self._model(list(inputs))
        digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
        return Cut(model=model, inputs=inputs, output_axes=self._axes, digest=digest)

    def _enter(self, part: str, edge: Edge) -> None:
        """Make an operand of the products from an input."""
        name = part
        if edge.groups > 1:
            name = self._repeated(name, edge)
        for operator, number in reversed(edge.factors):
            factor = self._number(number)
            name = self._node(operator, [name, factor])
        if self._axes != _PACKED:
            name = self._turned(name, self._axes, edge.operand_letters)
        # One tensor may be key and value at once: each product reads its own.
        self._parts.names[f"{part}:{edge.operand}"] = name

    def _repeated(self, name: str, edge: Edge) -> str:
        groups = edge.groups
        if edge.tiled:
            return self._node("Tile", [name, self._whole([1, groups, 1, 1])])
        shape = self._node("Shape", [name])
        goal = self._node("Mul", [shape, self._whole([1, groups, 1, 1])])
        if self._graph.opset >= _WITH_TENSOR_AXES:
            apart = self._node("Unsqueeze", [name, self._whole([2])])
        else:
            apart = self._node("Unsqueeze", [name], axes=[2])
        wide = self._node("Expand", [apart, self._whole([1, 1, groups, 1, 1])])
        return self._node("Reshape", [wide, goal])

    def _turned(self, name: str, own: str, theirs: str) -> str:
        if "F" in theirs and own == "BHLD":
            goal = self._joined([self._whole([-1]), self._part_of_shape(name, [2, 3])])
            name, own = self._node("Reshape", [name, goal]), "FLD"
        if own == theirs:
            return name
        return self._node("Transpose", [name], perm=[own.index(letter) for letter in theirs])

    def _part_of_shape(self, name: str, places: list[int]) -> str:
        return self._node("Gather", [self._node("Shape", [name]), self._whole(places)], axis=0)

    def _joined(self, parts: list[str], axis: int = 0) -> str:
        return self._node("Concat", parts, axis=axis)

    def _bias_of(self, mask: MaskInput, name: str) -> str:
        """Undo the factor on a bias, so that ``name`` itself shifts the softmax."""
        if mask.role != "bias" or mask.factor == 1:
            return name
        if mask.factor == -1:
            return self._node("Neg", [name])
        kind = helper.tensor_dtype_to_np_dtype(self._graph.type(mask.name) or _FLOAT)
        factor = self._stored(f"factor:{mask.name}", np.array(mask.factor, kind))
        return self._node("Div", [name, factor])

    def _sinks(self) -> str:
        """Broadcast one number a head to ``[items, heads, queries, 1]``; a node reads heads."""
        if len(self._site.nodes) == 1:
            return SINKS
        apart = self._node("Reshape", [SINKS, self._whole([1, -1, 1, 1])])
        sizes = self._part_of_shape("query", [0, 1, 2])
        return self._node("Expand", [apart, self._joined([sizes, self._whole([1])])])

    def _refold(self, node: Node) -> None:
        """Join or split items and heads of scores or weights."""
        name = self._name(node, 0, node.input[0])
        folded = len("FQK")  # any other axis more is one of one
        before, after = (
            self._graph.rank(each) == folded for each in (node.input[0], node.output[0])
        )
        if before == after:
            result = name
        elif after:
            goal = self._joined([self._whole([-1]), self._part_of_shape(name, [2, 3])])
            result = self._node("Reshape", [name, goal])
        else:
            heads = self._whole([-1, int(self._site.heads or 1)])
            goal = self._joined([heads, self._part_of_shape(name, [1, 2])])
            result = self._node("Reshape", [name, goal])
        self._parts.names[node.output[0]] = result

    def _copy(self, node: Node) -> None:
        copied = NodeProto()
        copied.CopyFrom(node)
        for said in ("metadata_props", "doc_string", "name"):
            copied.ClearField(said)
        placed = self._assembled() if node.output[0] == self._site.output else {}
        for at, name in enumerate(node.input):
            if at in placed:
                copied.input[at] = placed[at]
            else:
                copied.input[at] = self._name(node, at, name) if name else ""
        for at, name in enumerate(node.output):
            copied.output[at] = self._made(name) if name else ""
        self._parts.nodes.append(copied)

    def _assembled(self) -> dict[int, str]:
        """Return by place the inputs of a node with query, key and value in one tensor."""
        how, parts = self._site.assembly, list(PARTS)
        if how == "projected":
            kind = self._graph.type(self._site.output) or _FLOAT
            width = len(parts) * int(self._site.heads or 1) * int(self._site.head_size or 1)
            nothing = numpy_helper.from_array(np.zeros(1, helper.tensor_dtype_to_np_dtype(kind)))
            square, row = (
                self._node("ConstantOfShape", [self._whole(sizes)], value=nothing)
                for sizes in ([width, width], [width])
            )
            return {0: self._joined(parts, 2), 1: self._node("EyeLike", [square]), 2: row}
        if how in ("packed", "groups"):
            apart = {0: self._joined(parts, 2), 1: "", 2: ""} if how == "packed" else {}
            return {**apart, **self._lengths()}
        return {}

    def _lengths(self) -> dict[int, str]:
        """Return GroupQueryAttention's lengths of all keys: last index by item, and number."""
        whole = TensorProto.INT32
        counted = self._part_of_shape("key", [1])
        last = self._node("Sub", [counted, self._whole([1])])
        each = self._node("Expand", [last, self._part_of_shape("key", [0])])
        number = self._node("Cast", [counted], to=whole)
        nothing = self._stored("axes:scalar", np.array([], np.int64))
        return {
            5: self._node("Cast", [each], to=whole),
            6: self._node("Reshape", [number, nothing]),
        }

    def _name(self, node: Node, at: int, name: str) -> str:
        names = self._parts.names
        own = names.get(f"{self._part(node, at)}:{name}") or names.get(name)
        return own or self._number(name)

    def _part(self, node: Node, at: int) -> str:
        """Return which of query, key and value a node reads at a place, "" for none."""
        if len(self._site.nodes) == 1 and node.output[0] == self._site.output:
            return PARTS[at] if at < len(PARTS) else ""
        if contraction_of(node) is None:
            return ""
        if node.output[0] == self._first:
            return "query" if at == 0 else "key"
        return "value"

    @cached_property
    def _first(self) -> str:
        """Return the result of the product of query and key, "" inside a node."""
        products = (node for node in self._site.inside if contraction_of(node) is not None)
        return next((str(node.output[0]) for node in products), "")

    def _number(self, name: str) -> str:
        """Return a stored number of the model, or one derived from sizes, as a constant."""
        names = self._parts.names
        if name in names:
            return names[name]
        value = self._graph.stored(name)
        if value is None:
            numbers = self._graph.numbers(name)
            if numbers is None or not self._graph.is_known(name):
                msg = f"it reads {name}, which nobody can work out without running the model"
                raise UnreadableError(msg)
            kind = helper.tensor_dtype_to_np_dtype(self._graph.type(name) or _FLOAT)
            value = numbers.astype(kind)
        return self._stored(name, np.asarray(value))

    def _stored(self, name: str, value: Any) -> str:
        own = f"number_{len(self._parts.numbers)}"
        self._parts.numbers.append(numpy_helper.from_array(value, own))
        self._parts.names[name] = own
        return own

    def _whole(self, numbers: list[int]) -> str:
        return self._stored(f"whole:{len(self._parts.numbers)}", np.array(numbers, np.int64))

    def _made(self, name: str) -> str:
        own = f"made_{len(self._parts.nodes)}" if name != self._site.output else "answer"
        if own in self._parts.names.values():
            own += f"_{len(self._parts.names)}"
        self._parts.names[name] = own
        return own

    def _node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        name = f"entering_{len(self._parts.nodes)}"
        self._parts.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def _leave(self) -> None:
        """Permute the answer into the axes of the inputs."""
        axes = self._axes if self._axes == _PACKED else self._site.output_letters
        name = self._parts.names[self._site.output]
        if "F" in axes and self._axes == "BHLD":
            heads = self._whole([-1, int(self._site.heads or 1)])
            goal = self._joined([heads, self._part_of_shape(name, [1, 2])])
            name, axes = self._node("Reshape", [name, goal]), axes.replace("F", "BH")
        turns = [axes.index(letter) for letter in self._axes]
        if axes == self._axes:
            last = helper.make_node("Identity", [name], ["output"])
        else:
            last = helper.make_node("Transpose", [name], ["output"], perm=turns)
        self._parts.nodes.append(last)

    def _model(self, inputs: list[str]) -> ModelProto:
        graph = self._graph
        ports = [self._port(part, edge.name) for part, edge in self._site.edges.items()]
        sizes = self._sizes("query")
        for name, mask in zip(inputs[len(PARTS) :], self._site.masks, strict=False):
            axes: list[Any] = [sizes.get(letter, 1) for letter in mask.axes]
            kind = graph.type(mask.name) or (_FLOAT if mask.role == "bias" else TensorProto.BOOL)
            ports.append(helper.make_tensor_value_info(name, kind, axes))
        ports += self._others(inputs)
        own = {**self._sizes("query"), "D": self._sizes("value")["D"]}
        own["M"] = self._sizes("output")["M"]
        shape = [own[letter] for letter in self._axes]
        kind = graph.type(self._site.query.name) or _FLOAT
        answer = helper.make_tensor_value_info("output", kind, shape)
        body = helper.make_graph(
            self._parts.nodes, "core", ports, [answer], initializer=self._parts.numbers
        )
        # Every operator of the model may be among the copied ones.
        used = {"" if n.domain == "ai.onnx" else n.domain for n in self._parts.nodes} | {""}
        opsets = [
            helper.make_opsetid(entry.domain, entry.version)
            for entry in graph.model.opset_import
            if ("" if entry.domain == "ai.onnx" else entry.domain) in used
        ]
        version = graph.model.ir_version
        return helper.make_model(
            body, opset_imports=opsets, ir_version=version, producer_name="attention-conformance"
        )

    def _others(self, inputs: list[str]) -> list[Any]:
        """Return the ports of a cache and of sinks."""
        ports = []
        for part, tensor, role in zip(PARTS[1:], self._site.cache, CACHES, strict=False):
            sizes = self._sizes(part)
            shape = self._graph.shape(tensor)
            last = shape[-1] if shape and isinstance(shape[-1], int) else self._site.head_size
            axes = ["batch", sizes["H"], "past", last or sizes["D"]]
            kind = self._graph.type(tensor) or self._graph.type(self._site.query.name) or _FLOAT
            ports.append(helper.make_tensor_value_info(role, kind, axes))
        if SINKS in inputs:
            kind = self._graph.type(self._site.query.name) or _FLOAT
            heads = [self._sizes("query")["H"]]
            ports.append(helper.make_tensor_value_info(SINKS, kind, heads))
        return ports

    def _port(self, part: str, tensor: str) -> Any:
        sizes = self._sizes(part)
        kind = self._graph.type(tensor) or _FLOAT
        return helper.make_tensor_value_info(part, kind, [sizes[x] for x in self._axes])

    def _sizes(self, part: str) -> dict[str, Any]:
        """Return an input's size by letter: fixed where the model's own numbers need it."""
        site = self._site
        size, grouped = site.head_size, site.key.groups > 1 or site.heads != site.kv_heads
        refolded = any(node.op_type in ("Reshape", "Squeeze") for node in site.inside)
        grouped = grouped or bool(site.cache) or refolded or "F" in site.output_letters
        heads = site.kv_heads if part in ("key", "value") else site.heads
        width = heads * size if heads and size else f"{part}_width"
        own = part in ("query", "output") or bool(site.assembly)  # one tensor has one length
        return {
            "B": "batch",
            "F": "items",
            "H": heads if grouped and heads else "heads",
            "L": "queries" if own else "keys",
            "Q": "queries",
            "K": "queries" if site.assembly else "keys",
            "D": size if size and part != "value" else f"{part}_size",
            "M": width,
        }
