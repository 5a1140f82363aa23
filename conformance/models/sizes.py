"""Shapes and small numbers of a graph, computed without a run.

onnx's own inference comes first, and stops where an exporter computes a ``Reshape``'s shape from
sizes: these numbers and their consequences are computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from ..graphs.parsing import dimension
from ..graphs.protocol import Array
from ..graphs.reading import Axis
from ..graphs.weights.wiring import Node, Wiring, attributes

Shape = tuple[Axis, ...]
# Exceptions of a node incompatible with its inputs.
_CONTRADICTIONS: Final = (
    *(ValueError, LookupError, TypeError, ArithmeticError, RuntimeError),
    *(onnx.shape_inference.InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError),
)
# onnx's numbers of integer types, whose quotients are truncated.
_WHOLE_TYPES: Final = frozenset(
    {TensorProto.INT64, TensorProto.INT32, TensorProto.INT16, TensorProto.INT8}
    | {TensorProto.UINT64, TensorProto.UINT32, TensorProto.UINT16, TensorProto.UINT8}
)
# Slices use the largest numbers as open ends; this limit fits into integers.
_FAR: Final = 2.0**31 - 1
# The most elements of computed numbers: shapes and scalars.
_MOST_NUMBERS: Final = 64


class Sizes:
    """The known shapes, types and small numbers of a graph.

    shapes: a size, a name or None for each axis; None for a tensor of unknown rank.
    types: the element type of each tensor, by onnx's number.

    ``stored`` reads a tensor from the file, None if missing.
    """

    def __init__(
        self, model: ModelProto, wiring: Wiring, stored: Callable[[str], Array | None]
    ) -> None:
        self._wiring, self._read = wiring, stored
        self._opset = max(
            (e.version for e in model.opset_import if e.domain in _STANDARD), default=1
        )
        self._numbers: dict[str, Array | None] = {}
        self.shapes, self.types = _inferred(model)
        for node in wiring.ordered:
            self._follow(node)

    def numbers(self, name: str) -> Array | None:
        """A small tensor worked out from constants and shapes, in float64; NaN: unknown sizes."""
        waiting, begun = [name], set[str]()
        while waiting:  # graphs are deeper than calls may be
            own = waiting[-1]
            above = [] if own in begun else [e for e in self._read_by(own) if e not in begun]
            begun.add(own)
            above = [entry for entry in above if entry not in self._numbers]
            if own not in self._numbers and not above:
                self._numbers[own] = self._worked_out(own)
            waiting = [*waiting, *above] if above else waiting[:-1]
        return self._numbers[name]

    def _read_by(self, name: str) -> list[str]:
        """Return the tensors from which the numbers of a tensor are computed."""
        node = self._wiring.producer.get(name)
        known = node is not None and node.op_type in _OPERATORS and node.domain in _DOMAINS
        return [entry for entry in node.input if entry] if node is not None and known else []

    def _follow(self, node: Node) -> None:
        """Record the shape of a node's result, if it says more than the known shape."""
        if not node.output or node.domain not in _DOMAINS:
            return
        if node.op_type == "EmbedLayerNormalization":
            self._embedded(node)
            return
        name = node.output[0]
        if node.op_type in _SUMMING and len(node.output) > _SUM and node.output[_SUM]:
            self.shapes.setdefault(node.output[_SUM], self.shapes.get(node.input[0]))
            self.types.setdefault(node.output[_SUM], self.types.get(node.input[0], 0))
        known = self.shapes.get(name)
        if known is not None and all(isinstance(size, int) for size in known):
            return
        try:
            own = self._made(node)
            made = self._inferred_of(node) if own is None else {name: own}
        except _CONTRADICTIONS:  # of a node with its inputs: whoever opens the graph says so
            return
        for name, own in made.items():
            known = self.shapes.get(name)
            if known is None or len(known) == len(own):
                self.shapes[name] = _sharper(own, known)

    def _inferred_of(self, node: Node) -> dict[str, Shape]:
        """Infer result shapes of a single standard node with onnx; raises KeyError.

        Runtimes know operators in versions before their first one.
        """
        node = _as_standard(node)
        if node.domain not in _STANDARD or not onnx.defs.has(node.op_type):
            return {}
        make, kind_of = onnx.helper.make_tensor_type_proto, onnx.helper.tensor_dtype_to_np_dtype
        types = {name: self.types.get(name) or TensorProto.FLOAT for name in node.input if name}
        ports = {name: make(kind, self.shapes[name]) for name, kind in types.items()}
        known = {
            name: onnx.numpy_helper.from_array(np.clip(numbers, -_FAR, _FAR).astype(kind_of(kind)))
            for name, kind in types.items()
            if kind in _WHOLE_TYPES
            and (numbers := self.numbers(name)) is not None
            and not np.isnan(numbers).any()
        }
        known_then = onnx.defs.has(node.op_type, self._opset)
        opset = self._opset if known_then else onnx.defs.onnx_opset_version()
        schema = onnx.defs.get_schema(node.op_type, opset)
        made = onnx.shape_inference.infer_node_outputs(schema, node, ports, known)
        shapes = {name: kind.tensor_type for name, kind in made.items()}
        return {
            name: tuple(map(dimension, tensor.shape.dim))
            for name, tensor in shapes.items()
            if tensor.HasField("shape")
        }

    def _embedded(self, node: Node) -> None:
        """Record the results of onnxruntime's embedding: tokens, and numbers for each item."""
        ids, table = self.shapes.get(node.input[0]), self.shapes.get(node.input[2])
        if ids and table:
            self.shapes[node.output[0]] = (*ids, table[-1])
        if ids and len(node.output) > 1 and node.output[1]:
            self.shapes[node.output[1]], self.types[node.output[1]] = ids[:1], TensorProto.INT32

    def _made(self, node: Node) -> Shape | None:
        shapes = [self.shapes.get(entry) for entry in node.input if entry]
        make = _SHAPES.get(node.op_type)
        if make is not None and shapes:
            numbers = self.numbers(node.input[1]) if len(node.input) > 1 else None
            return make(node, shapes[0], numbers)
        own = _OWN.get(node.op_type)
        if own is not None and shapes:
            return own(self, node, shapes[0])
        known = [shape for shape in shapes if shape is not None]
        if not known or len(known) < len(shapes):
            return None
        if node.op_type in _PRODUCTS and min(map(len, known)) > 1:
            return _product(node, *known[:2])
        return _broadcast(known) if node.op_type in _ELEMENTWISE else None

    def _attended(self, node: Node, above: Shape | None) -> Shape | None:
        """Return the result shape of onnxruntime's attention, which projects the tokens itself."""
        columns = self.shapes.get(node.input[1])
        if not above or not columns or node.domain != "com.microsoft":
            return None
        widths = attributes(node).get("qkv_hidden_sizes")
        if widths:
            return (*above[:-1], widths[-1])
        parts = len(("query", "key", "value"))
        return (*above[:-1], columns[-1] // parts if isinstance(columns[-1], int) else None)

    def _worked_out(self, name: str) -> Array | None:
        node = self._wiring.producer.get(name)
        if node is None or node.op_type == "Constant":
            return self._stored(name)
        if node.op_type == "Shape":
            return self._sizes(node)
        work = _OPERATORS.get(node.op_type)
        values = [self._numbers.get(entry) if entry else None for entry in node.input]
        unknown = any(e for e, value in zip(node.input, values, strict=True) if value is None)
        if work is None or unknown or node.domain not in _DOMAINS:
            return None
        try:
            with np.errstate(all="ignore"):
                result = work(node, values)
        except _CONTRADICTIONS:
            return None
        if node.op_type == "Div" and self.types.get(name) in _WHOLE_TYPES:
            result = np.trunc(result)
        if node.op_type == "QuantizeLinear":
            result = np.clip(result, *self.limits(node))
        return result if result.size <= _MOST_NUMBERS else None

    def limits(self, node: Node) -> tuple[float, float]:
        """The least and the largest integer that a ``QuantizeLinear`` gives."""
        at = len(("tensor", "step"))
        kind = self.types.get(node.input[at] if len(node.input) > at else node.output[0], 0)
        try:
            info = np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(kind or TensorProto.UINT8))
        except (ValueError, KeyError):
            return -math.inf, math.inf
        return float(info.min), float(info.max)

    def _stored(self, name: str) -> Array | None:
        tensor = self._wiring.initializers.get(name)
        if tensor is not None and math.prod(tensor.dims) > _MOST_NUMBERS:
            return None
        value = self._read(name)
        if value is None or value.dtype.kind not in "biuf" or value.size > _MOST_NUMBERS:
            return None
        return value.astype(np.float64)

    def _sizes(self, node: Node) -> Array | None:
        """Compute the result of a ``Shape`` node."""
        shape = self.shapes.get(node.input[0])
        if shape is None:
            return None
        own = attributes(node)
        sizes = [size if isinstance(size, int) else math.nan for size in shape]
        return np.array(sizes[own.get("start", 0) : own.get("end", len(sizes))])


def _as_standard(node: Node) -> Node:
    """Rewrite onnxruntime's node fused with an activation as the standard's; else as is."""
    name = node.op_type.removeprefix("Fused")
    if node.domain in _STANDARD or name == node.op_type or not onnx.defs.has(name):
        return node
    schema = onnx.defs.get_schema(name)
    own = {key: value for key, value in attributes(node).items() if key in schema.attributes}
    if any(not key.startswith("activation") for key in attributes(node).keys() - own.keys()):
        return node
    return onnx.helper.make_node(name, node.input[: schema.max_input], node.output, **own)


def _product(node: Node, first: Shape, second: Shape) -> Shape | None:
    """Return the shape of a product, whose operands onnxruntime may transpose."""
    own = attributes(node)
    if own.get("transBatchA") or own.get("transBatchB"):
        return None
    rows, columns = (-1 if own.get("transA") else -2), (-2 if own.get("transB") else -1)
    return (*_broadcast([first[:-2], second[:-2]]), first[rows], second[columns])


def _of_columns(_sizes: Sizes, node: Node, above: Shape | None) -> Shape | None:
    """Return the shape of a product with a matrix of ``N`` columns."""
    return (*above[:-1], attributes(node)["N"]) if above else None


_OWN: Final[Mapping[str, Callable[[Sizes, Node, Shape | None], Shape | None]]] = {
    "Attention": Sizes._attended,  # noqa: SLF001 (its own)
    "MatMulNBits": _of_columns,
}


def _inferred(model: ModelProto) -> tuple[dict[str, Shape | None], dict[str, int]]:
    """Return shapes and element types stated by the file or inferred by onnx."""
    graph = model.graph
    try:
        whole = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # noqa: BLE001 (it raises whatever its parts do; what the file says remains)
        whole = graph
    shapes: dict[str, Shape | None] = {}
    types: dict[str, int] = {}
    for value in (*graph.value_info, *whole.value_info, *graph.input, *graph.output):
        tensor = value.type.tensor_type
        types[value.name] = tensor.elem_type or types.get(value.name, 0)
        if tensor.HasField("shape"):
            shape = tuple(map(dimension, tensor.shape.dim))
            shapes[value.name] = _sharper(shape, shapes.get(value.name))
        else:
            shapes.setdefault(value.name, None)
    for stored in graph.initializer:
        shapes[stored.name] = tuple(stored.dims)
        types[stored.name] = stored.data_type
    return shapes, types


def _sharper(one: Shape, other: Shape | None) -> Shape:
    """Merge two shapes: known sizes of either, else the second shape's names."""
    if other is None or len(other) != len(one):
        return one
    pairs = zip(one, other, strict=True)
    return tuple(a if isinstance(a, int) or b is None else b for a, b in pairs)


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result: list[Axis] = []
    for sizes in zip(*wide, strict=True):
        others = [size for size in sizes if size != 1]
        fixed = [size for size in others if isinstance(size, int)]
        result.append(fixed[0] if fixed else others[0] if others else 1)
    return tuple(result)


def _reshaped(_node: Node, above: Shape | None, numbers: Array | None) -> Shape | None:
    """Return the shape of a ``Reshape`` to these numbers; NaN is an unknown size."""
    if numbers is None:
        return None
    shape: list[Axis] = [
        int(number) if not math.isnan(number) and number > 0 else None for number in numbers
    ]
    rest = [at for at, number in enumerate(numbers) if number == -1]
    last = above[-1] if above else None
    if len(rest) == 1 and isinstance(last, int) and above is not None:
        # A width cut into heads: [B, L, E] as [B, L, -1, D] or [B, L, H, -1].
        start = len(above) - 1
        others = [size for at, size in enumerate(shape) if at >= start and at != rest[0]]
        known = [size for size in others if isinstance(size, int)]
        if rest[0] >= start and len(known) == len(others) < len(shape) - start:
            shape[rest[0]] = last // math.prod(known)
        # Heads merged again: [B, L, H, D] as [B, L, -1].
        tail = [size for size in above[rest[0] :] if isinstance(size, int)]
        if rest[0] == len(shape) - 1 < len(above) - 1 and len(tail) == len(above) - rest[0]:
            shape[rest[0]] = math.prod(tail)
    return tuple(shape)


def _expanded(_node: Node, above: Shape | None, numbers: Array | None) -> Shape | None:
    if above is None or numbers is None:
        return None
    return _broadcast([above, tuple(None if math.isnan(n) else int(n) for n in numbers)])


def _kept(_node: Node, above: Shape | None, _numbers: Array | None) -> Shape | None:
    return above


_SHAPES: Final[Mapping[str, Callable[[Node, Shape | None, Array | None], Shape | None]]] = {
    "Expand": _expanded,
    "Reshape": _reshaped,
    # Of onnxruntime's own domain.
    **dict.fromkeys(
        "BiasGelu DequantizeLinear FastGelu GroupQueryAttention MultiHeadAttention QuantizeLinear "
        "QuickGelu SimplifiedLayerNormalization SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization".split(),
        _kept,
    ),
}
# Their residual sum is a result, too.
_SUMMING: Final = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
_SUM: Final = 3
_STANDARD: Final = ("", "ai.onnx")
# onnxruntime's domain has operators of the standard's names for further types.
_DOMAINS: Final = (*_STANDARD, "com.microsoft")
_PRODUCTS: Final = ("FusedMatMul", "MatMul")
_ELEMENTWISE: Final = frozenset("Add And Div Max Min Mul Or Pow Sub Where".split())
Work = Callable[[Node, list[Any]], Array]


def _whole(values: Any) -> list[int]:
    return [int(number) for number in np.asarray(values).reshape(-1)]


def _gather(node: Node, values: list[Any]) -> Array:
    axis = attributes(node).get("axis", 0)
    return np.asarray(np.take(values[0], np.asarray(values[1]).astype(np.int64), axis=axis))


def _parts(node: Node, numbers: Sequence[Any]) -> list[tuple[int, slice]]:
    """Return the axes of a ``Slice`` and the slice along each.

    ``numbers`` are its inputs after the data: starts, ends, axes, steps, None if left out. Before
    opset 10 they are attributes.
    """
    own = attributes(node)
    named = [own.get(name) for name in ("starts", "ends", "axes")]
    starts, ends, axes, steps = [*(numbers or named), None, None][:4]
    first = _whole(starts)
    return [
        (axis, slice(start, end, step))
        for start, end, axis, step in zip(
            first,
            _whole(ends),
            range(len(first)) if axes is None else _whole(axes),
            [1] * len(first) if steps is None else _whole(steps),
            strict=True,
        )
    ]


def _slice(node: Node, values: list[Any]) -> Array:
    result = values[0]
    for axis, part in _parts(node, values[1:]):
        index: list[Any] = [slice(None)] * result.ndim
        index[axis] = part
        result = result[tuple(index)]
    return np.asarray(result)


def _squeeze(node: Node, values: list[Any]) -> Array:
    axes = _whole(values[1]) if len(values) > 1 else attributes(node).get("axes")
    return np.asarray(np.squeeze(values[0], None if axes is None else tuple(axes)))


def _cast(node: Node, values: list[Any]) -> Array:
    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    value = np.asarray(values[0])
    return value if attributes(node)["to"] in floats else np.trunc(value)


def _unsqueeze(node: Node, values: list[Any]) -> Array:
    axes = _whole(values[1]) if len(values) > 1 else attributes(node)["axes"]
    return np.asarray(np.expand_dims(values[0], tuple(axes)))


def _filled(node: Node, values: list[Any]) -> Array:
    value = np.asarray(attributes(node).get("value", 0.0)).reshape(-1)
    return np.full(_whole(values[0]), float(value[0]))


def _of(function: Callable[..., Any]) -> Work:
    return lambda _node, values: np.asarray(function(*values), dtype=np.float64)


_OPERATORS: Final[Mapping[str, Work]] = {
    "Add": _of(np.add),
    "Cast": _cast,
    "Concat": lambda node, values: np.concatenate(values, axis=attributes(node)["axis"]),
    "ConstantOfShape": _filled,
    "DequantizeLinear": _of(lambda value, step, zero=0.0: (value - zero) * step),
    "Div": _of(np.divide),
    "Equal": _of(np.equal),
    "Exp": _of(np.exp),
    "Gather": _gather,
    "Identity": _of(np.asarray),
    "Max": _of(np.maximum),
    "Min": _of(np.minimum),
    "Mod": _of(np.mod),
    "Mul": _of(np.multiply),
    "Neg": _of(np.negative),
    "Pow": _of(np.power),
    "QuantizeLinear": _of(lambda value, step, zero=0.0: np.rint(value / step) + zero),
    "Reciprocal": _of(np.reciprocal),
    "Reshape": lambda _node, values: np.reshape(values[0], _whole(values[1])),
    "Slice": _slice,
    "Sqrt": _of(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _of(np.subtract),
    "Unsqueeze": _unsqueeze,
    "Where": lambda _node, values: np.asarray(np.where(values[0] != 0, *values[1:])),
}
