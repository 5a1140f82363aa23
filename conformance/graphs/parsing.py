"""Reads what a model file says of itself, inside the graph's process: the file may be hostile.

What cannot be a graph at all is refused with the end of a sentence that starts with its path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import ModelProto, TensorProto

from .external import external_files, external_size, stray_files
from .lost import GraphRefused

_LONGEST_NAME: Final = 120
_STRINGS: Final[dict[int, str]] = {int(TensorProto.STRING): "string"}
_AT_MOST_SHOWN: Final = 3


def read_model(path: Path) -> ModelProto:
    """The model without its external data; raises GraphRefused for what is none."""
    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 (protobuf's DecodeError: that library is onnx' affair)
        msg = "is no ONNX graph, or only a part of one: export or copy it again"
        raise GraphRefused(msg) from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        msg = "holds no graph: it is no ONNX file, or only a part of one"
        raise GraphRefused(msg)
    return model


def header(path: Path) -> dict[str, Any]:
    """The fields of a Header as plain data; raises GraphRefused for what cannot be judged."""
    from .randomness import random_nodes  # noqa: PLC0415 (it imports this module)

    model = read_model(path)
    graph = model.graph
    given = {tensor.name for tensor in graph.initializer}
    given |= {tensor.values.name for tensor in graph.sparse_initializer}
    inputs = [_port(value) for value in graph.input if value.name not in given]
    outputs = [_port(value) for value in graph.output]
    opsets = {_domain(opset.domain): int(opset.version) for opset in model.opset_import}
    _check_opsets(opsets)
    operators = sorted({f"{domain}::{name}" for domain, name in _operators(model)})
    _check_operators(model)
    if not inputs:
        msg = "has no inputs, so it computes the same whatever it is asked: export it with inputs"
        raise GraphRefused(msg)
    if not outputs:
        msg = "has no outputs: there is nothing to judge"
        raise GraphRefused(msg)
    tensors = list(all_tensors(model))
    _check_claims(tensors)
    files = external_files(tensors, path)
    return {
        "ir_version": int(model.ir_version),
        "opsets": opsets,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "inputs": inputs,
        "outputs": outputs,
        "operators": operators,
        "external": files,
        "external_size": external_size(tensors),
        "stray": stray_files(files, path),
        "random": random_nodes(model),
        "size": path.stat().st_size,
    }


def _port(value: Any) -> dict[str, Any]:
    kind = value.type
    if not kind.HasField("tensor_type"):
        return {"name": value.name, "dtype": "", "shape": None}
    tensor = kind.tensor_type
    shape = [_axis(axis) for axis in tensor.shape.dim] if tensor.HasField("shape") else None
    return {"name": value.name, "dtype": _dtype(tensor.elem_type), "shape": shape}


def _axis(axis: Any) -> int | str | None:
    """A size or a name; some exporters write -1 for what is dynamic."""
    if axis.HasField("dim_value"):
        return int(axis.dim_value) if axis.dim_value >= 0 else None
    return str(axis.dim_param) or None


def _dtype(code: int) -> str:
    """Numpy's name of an element type, "" for a code that onnx does not know."""
    if code in _STRINGS:
        return _STRINGS[code]
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, TypeError, ValueError):
        return ""


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_opsets(opsets: dict[str, int]) -> None:
    if not opsets:
        msg = "names no operator set, so nobody knows what its operators mean: export it again"
        raise GraphRefused(msg)
    known = int(onnx.defs.onnx_opset_version())
    if opsets.get("", 0) > known:
        msg = (
            f"is of opset {opsets['']}, newer than the {known} that the installed onnx "
            f"{onnx.__version__} knows: export it at a lower opset, or install a newer onnx"
        )
        raise GraphRefused(msg)


def _check_operators(model: ModelProto) -> None:
    """Refuse operators of domains that no installed library defines."""
    own = {(_domain(function.domain), function.name) for function in model.functions}
    strange = {pair for pair in _operators(model) - own if pair[0] not in _standard_domains()}
    if not strange:
        return
    known = _runtime_operators()
    unknown = sorted(f"{domain}::{name}" for domain, name in strange - known)
    if unknown:
        more = f" and {len(unknown) - _AT_MOST_SHOWN} more" if len(unknown) > _AT_MOST_SHOWN else ""
        msg = (
            f"uses {', '.join(unknown[:_AT_MOST_SHOWN])}{more}, which neither ONNX nor onnxruntime "
            "defines: no library of custom operators is loaded, so export it without them"
        )
        raise GraphRefused(msg)


def _standard_domains() -> set[str]:
    return {_domain(schema.domain) for schema in onnx.defs.get_all_schemas()}


def _runtime_operators() -> set[tuple[str, str]]:
    """What onnxruntime defines beside the standard."""
    from onnxruntime.capi import onnxruntime_pybind11_state  # noqa: PLC0415 (a quarter second)

    schemas = onnxruntime_pybind11_state.get_all_operator_schema()
    return {(_domain(schema.domain), schema.name) for schema in schemas}


def _operators(model: ModelProto) -> set[tuple[str, str]]:
    return {(_domain(node.domain), node.op_type) for node in all_nodes(model)}


def all_nodes(model: ModelProto) -> Iterator[Any]:
    """The nodes of the graph, of its functions and of every graph inside them."""
    for message in _messages(model):
        if isinstance(message, onnx.NodeProto):
            yield message


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """The tensors of the graph: initializers and attributes, of subgraphs and functions, too."""
    for message in _messages(model):
        if isinstance(message, TensorProto):
            yield message


def _messages(message: Any) -> Iterator[Any]:
    """A message and all that it holds, however deep, in the file's order."""
    waiting = [message]
    while waiting:
        found = waiting.pop()
        yield found
        inside: list[Any] = []
        for field, value in found.ListFields():
            if field.message_type is not None:
                inside.extend(value if field.is_repeated else (value,))
        waiting.extend(reversed(inside))


def _check_claims(tensors: list[TensorProto]) -> None:
    """Refuse tensors that claim to be larger than what the file holds of them."""
    for tensor in tensors:
        name = tensor.name[:_LONGEST_NAME]
        if any(axis < 0 for axis in tensor.dims):
            msg = f"says that its tensor {name!r} has the shape {list(tensor.dims)}: it is damaged"
            raise GraphRefused(msg)
        held, claimed = held_elements(tensor), math.prod(tensor.dims)
        if held is not None and held != claimed:
            msg = (
                f"says that its tensor {name!r} has {claimed} elements ({list(tensor.dims)}), but "
                f"holds {held} of them: it is damaged, export or copy it again"
            )
            raise GraphRefused(msg)


def held_elements(tensor: TensorProto) -> int | None:
    """How many elements the file itself holds; None where it does not say."""
    if tensor.data_location == TensorProto.EXTERNAL or not tensor.HasField("raw_data"):
        return _held_apart(tensor)
    size = bytes_of(tensor, 1 << 20) / (1 << 20)
    return None if not size else int(len(tensor.raw_data) / size)


def _held_apart(tensor: TensorProto) -> int | None:
    """The same where elements are written one by one; packed and complex ones are not counted."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return None
    fields = ("float_data", "int64_data", "double_data", "string_data", "uint64_data")
    held = [len(getattr(tensor, field)) for field in fields if len(getattr(tensor, field))]
    if held and tensor.data_type not in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return held[0]
    return None if len(tensor.int32_data) or not math.prod(tensor.dims) or held else 0


def bytes_of(tensor: TensorProto, elements: int) -> int:
    """The bytes of some elements of a tensor's type; 0 for a type without a size."""
    bits = _BITS.get(tensor.data_type)
    if bits is not None:
        return (elements * bits + 7) // 8
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize) * elements
    except (KeyError, TypeError, ValueError):
        return 0


# Elements that share a byte.
_BITS: Final = {
    getattr(TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(TensorProto, name)
}
