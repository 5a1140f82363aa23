"""Defects of a model file that opens, examined inside the graph's process."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, inliner, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from ..base.printable_text import few
from .protocol import MEMORY, GraphRefused, sentence

_LONGEST_NAME: Final = 120
# Suffixes exporters append to ``model.onnx`` for the file of weights.
_SIDECARS: Final = (".data", "_data")
_NUMPY_FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_NUMPY_TYPES: Final = (*_NUMPY_FLOATS, TensorProto.INT8, TensorProto.UINT8)


def external_files(tensors: Iterable[TensorProto], path: Path) -> list[str]:
    """Return the files holding a graph's external tensors, relative to its folder.

    Raises GraphRefused for a file outside that folder, missing, or too short. A hard link is an
    ordinary file: nobody can say which of its names came first.
    """
    return sorted({_checked_location(tensor, path) for tensor in _outside(tensors)})


def relocate(tensors: Iterable[TensorProto], path: Path) -> None:
    """Rename external data relative to the folder a linked graph leads to."""
    home = path.resolve().parent
    for tensor in tensors if path.is_symlink() else ():
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = os.path.relpath(os.path.realpath(path.parent / entry.value), home)


def embedded(tensor: TensorProto, folder: Path) -> TensorProto:
    """Return a tensor with its bytes embedded, read from an external file if necessary.

    onnx itself follows no links, and a download cache consists of links.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    start, size = _extent(tensor, "")
    with (folder / ExternalDataInfo(tensor).location).open("rb") as file:
        file.seek(start)
        data = file.read(size)
    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=data
    )


def float_weights(
    model: ModelProto, path: Path, most: int, held: Mapping[str, Any], *, numbers: bool
) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a graph's float weights, smallest first, up to ``most`` bytes.

    Only weights in numpy's own floats, with at least one axis unless single ``numbers`` count as
    well; ``held`` are weights already taken out of the model.
    """
    sized = [
        (bytes_of(tensor, math.prod(tensor.dims)), tensor.name, tensor)
        for tensor in model.graph.initializer
        if tensor.data_type in _NUMPY_FLOATS and (tensor.dims or numbers)
    ]
    for size, name, tensor in sorted(sized, key=lambda entry: entry[:2]):
        most -= size
        if most < 0:
            return
        value = held.get(name)
        if value is None:
            value = numpy_helper.to_array(embedded(tensor, path.resolve().parent))
        yield name, value


def mapped(model: ModelProto, path: Path, least: int) -> dict[str, Any]:
    """Map a graph's weights of at least ``least`` bytes to memory-mapped arrays.

    Weights inside the model's own file are removed from the model, which keeps their place there.
    """
    values: dict[str, Any] = {}
    end = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        for tensor in model.graph.initializer:
            size = bytes_of(tensor, math.prod(tensor.dims))
            if size < least or tensor.data_type not in _NUMPY_TYPES:
                continue
            if tensor.data_location != TensorProto.EXTERNAL:
                # A file holds tensors in the order of the graph.
                at = whole.find(tensor.raw_data, end) if len(tensor.raw_data) == size else -1
                if at < 0:
                    continue
                end = at + size
                onnx.external_data_helper.set_external_data(tensor, path.name, at, size)
                tensor.ClearField("raw_data")
            values[tensor.name] = _pages(tensor, path)
    return values


def _pages(tensor: TensorProto, path: Path) -> Any:
    """Return an external tensor as a mapped array; a copy if its place is not aligned."""
    place = path.parent / _checked_location(tensor, path)
    start = _extent(tensor, "")[0]
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if start % kind.itemsize:
        return numpy_helper.to_array(embedded(tensor, path.parent))
    return np.memmap(place, kind, "c", start, tuple(tensor.dims))


def external_size(tensors: Iterable[TensorProto]) -> int:
    """Return the bytes of all external tensors, after their check."""
    return sum(_extent(tensor, "")[1] for tensor in _outside(tensors))


def _outside(tensors: Iterable[TensorProto]) -> list[TensorProto]:
    return [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]


def stray_files(external: Iterable[str], path: Path) -> list[str]:
    """Describe the faults of a graph's external files that do not prevent opening.

    A model that is a link itself, as in a download cache, has its data behind links, too.
    """
    result = [
        f"its external data {name!r} are a symbolic link, which onnx does not follow: copy the file"
        for name in external
        if (path.parent / name).is_symlink() and not path.is_symlink()
    ]
    for suffix in _SIDECARS:
        sidecar = path.with_name(path.name + suffix)
        if sidecar.name not in external and sidecar.is_file() and sidecar.stat().st_size:
            result.append(f"{sidecar.name!r} lies beside it, but it uses nothing of that file")
    return result


def _checked_location(tensor: TensorProto, path: Path) -> str:
    location = {entry.key: str(entry.value) for entry in tensor.external_data}.get("location", "")
    keeps = f"keeps its tensor {tensor.name[:_LONGEST_NAME]!r}"
    where = f"{keeps} in {location[:_LONGEST_NAME]!r}"
    if not location:
        msg = f"{keeps} outside its own file, but does not say where: export it again"
        raise GraphRefused(msg)
    if _escapes(location, path):
        msg = f"{where}, outside its own folder: move that file beside it and export it again"
        raise GraphRefused(msg)
    file = path.parent / location
    if not file.is_file():
        what = "which is no file" if file.exists() else "which is missing"
        msg = f"{where}, {what}: copy that file beside the graph, too"
        raise GraphRefused(msg)
    start, size = _extent(tensor, where)
    end = file.stat().st_size
    if start + size > end:
        msg = f"{where}, which ends at byte {end} where {start + size} are needed: copy it again"
        raise GraphRefused(msg)
    return location


def _escapes(location: str, path: Path) -> bool:
    """Tell whether a location leads out of the graph's folder, links followed.

    If the graph itself is a link, the folder of the link's target is allowed, too.
    """
    if Path(location).is_absolute() or "\0" in location:
        return True
    place = os.path.realpath(path.parent / location)
    homes = {os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))}  # noqa: PTH120
    return all(os.path.commonpath([home, place]) != home for home in homes)


def _extent(tensor: TensorProto, where: str) -> tuple[int, int]:
    """Return a tensor's first byte and number of bytes in its file."""
    try:
        info = ExternalDataInfo(tensor)
        start = int(info.offset or 0)
        size = int(info.length or bytes_of(tensor, math.prod(tensor.dims)))
    except ValueError as error:
        msg = f"{where}, but does not say in which bytes of it ({error}): export it again"
        raise GraphRefused(msg) from None
    if start < 0 or size < 0:
        msg = f"{where} from byte {start} on: it is damaged, export it again"
        raise GraphRefused(msg)
    return start, size


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


_DRAW: Final = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
_RATIO: Final = 1
_TRAINING: Final = 2


def random_nodes(model: ModelProto) -> list[str]:
    """The nodes that draw random numbers in every call: ``Dropout 'name' in training mode``.

    A training mode that is an input of the graph is the caller's choice.
    """
    constants = _constants(model)
    result = []
    for node in all_nodes(model):
        shown = f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)
        if node.domain in ("", "ai.onnx") and node.op_type in _DRAW:
            result.append(shown)
        elif node.op_type == "Dropout" and _trains(node, constants):
            result.append(f"{shown} in training mode")
    return list(dict.fromkeys(result))


def _trains(node: Any, constants: Mapping[str, Any]) -> bool:
    """Tell whether a dropout drops: its mode is on and its ratio not zero."""
    values = dict(enumerate(constants.get(name) for name in node.input))
    mode, ratio = values.get(_TRAINING), values.get(_RATIO)
    return mode is not None and bool(mode.any()) and (ratio is None or bool(ratio.any()))


def _constants(model: ModelProto) -> dict[str, Any]:
    """Return the constants of at most one element, inner graphs included."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in all_nodes(model):
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value" and node.output:
                    tensors[node.output[0]] = attribute.t
    return {
        name: onnx.numpy_helper.to_array(tensor)
        for name, tensor in tensors.items()
        if tensor.data_location != TensorProto.EXTERNAL
        and math.prod(tensor.dims) <= 1
        and tensor.data_type != TensorProto.STRING
    }


def read_model(path: Path) -> ModelProto:
    """Read a model without its external data; raises GraphRefused for other files."""
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


def inlined(model: ModelProto) -> ModelProto:
    """The model with its functions written out; raises GraphRefused where they have no end."""
    if not model.functions:
        return model
    try:
        whole: ModelProto = inliner.inline_local_functions(model)
    except Exception as error:  # noqa: BLE001 (onnx has its own classes for what it refuses)
        msg = (
            f"has functions that cannot be written out ({sentence(error)}): export it without them"
        )
        raise GraphRefused(msg) from None
    return whole


def header(path: Path) -> dict[str, Any]:
    """The fields of a Header as plain data; raises GraphRefused for what cannot be judged."""
    model = read_model(path)
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {tensor.values.name for tensor in graph.sparse_initializer}
    inputs = [_port(value) for value in graph.input if value.name not in stored]
    outputs = [_port(value) for value in graph.output]
    opsets = {_domain(opset.domain): int(opset.version) for opset in model.opset_import}
    _check_opsets(opsets)
    _check_operators(model)
    if not inputs:
        msg = "has no inputs, so it always computes the same: export it with inputs"
        raise GraphRefused(msg)
    if not outputs:
        msg = "has no outputs: there is nothing to judge"
        raise GraphRefused(msg)
    _check_sizes(inputs)
    inlined(model)
    tensors = list(all_tensors(model))
    _check_claims(tensors)
    files = external_files(tensors, path)
    return {
        "ir_version": int(model.ir_version),
        "opsets": opsets,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "inputs": inputs,
        "outputs": outputs,
        "operators": sorted({f"{domain}::{name}" for domain, name in _operators(model)}),
        "external": files,
        "external_size": external_size(tensors),
        "stray": stray_files(files, path),
        "random": random_nodes(model),
        "size": path.stat().st_size,
    }


def _check_sizes(inputs: list[dict[str, Any]]) -> None:
    """Refuse inputs that are empty, or too large for a graph's process."""
    for port in inputs:
        sizes = [axis for axis in port["shape"] or () if isinstance(axis, int)]
        if 0 in sizes:
            msg = (
                f"has an input {port['name']!r} with an axis of size 0, which holds nothing: "
                "export it with an example that has no such size"
            )
            raise GraphRefused(msg)
        if math.prod(sizes) > MEMORY:
            msg = (
                f"has an input {port['name']!r} of {' x '.join(map(str, sizes))} numbers, more "
                "than its process may take bytes: export it with axes that have names"
            )
            raise GraphRefused(msg)


def _port(value: Any) -> dict[str, Any]:
    kind = value.type
    if not kind.HasField("tensor_type"):
        return {"name": value.name, "dtype": "", "shape": None}
    tensor = kind.tensor_type
    shape = [dimension(axis) for axis in tensor.shape.dim] if tensor.HasField("shape") else None
    return {"name": value.name, "dtype": _dtype(tensor.elem_type), "shape": shape}


def dimension(axis: Any) -> int | str | None:
    """Return the size or name of an axis; None for -1, some exporters' dynamic size."""
    if axis.HasField("dim_value"):
        return int(axis.dim_value) if axis.dim_value >= 0 else None
    return str(axis.dim_param) or None


def _dtype(code: int) -> str:
    """Return numpy's name of an element type, "" for a code unknown to onnx."""
    if code == TensorProto.STRING:
        return "string"
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
    newest = int(onnx.defs.onnx_opset_version())
    if opsets.get("", 0) > newest:
        msg = (
            f"is of opset {opsets['']}, newer than the {newest} that the installed onnx "
            f"{onnx.__version__} knows: export it at a lower opset, or install a newer onnx"
        )
        raise GraphRefused(msg)


def _check_operators(model: ModelProto) -> None:
    """Refuse operators of domains that no installed library defines."""
    own = {(_domain(function.domain), function.name) for function in model.functions}
    standard = {_domain(schema.domain) for schema in onnx.defs.get_all_schemas()}
    strange = {pair for pair in _operators(model) - own if pair[0] not in standard}
    if not strange:
        return
    defined = _runtime_operators()
    unknown = sorted(f"{domain}::{name}" for domain, name in strange - defined)
    if unknown:
        msg = (
            f"uses {few(unknown)}, which neither ONNX nor onnxruntime "
            "defines: no library of custom operators is loaded, so export it without them"
        )
        raise GraphRefused(msg)


def _runtime_operators() -> set[tuple[str, str]]:
    from onnxruntime.capi import onnxruntime_pybind11_state  # noqa: PLC0415 (a quarter second)

    schemas = onnxruntime_pybind11_state.get_all_operator_schema()
    return {(_domain(schema.domain), schema.name) for schema in schemas}


def _operators(model: ModelProto) -> set[tuple[str, str]]:
    return {(_domain(node.domain), node.op_type) for node in all_nodes(model)}


def all_nodes(model: ModelProto) -> Iterator[Any]:
    """Yield the nodes of the graph, its functions and all inner graphs."""
    return (message for message in _messages(model) if isinstance(message, onnx.NodeProto))


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """The tensors of the graph: initializers and attributes, of subgraphs and functions, too."""
    return (message for message in _messages(model) if isinstance(message, TensorProto))


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all nested messages, in the file's order."""
    waiting = [message]
    while waiting:
        result = waiting.pop()
        yield result
        inside: list[Any] = []
        for field, value in result.ListFields():
            if field.message_type is not None:
                inside.extend(value if field.is_repeated else (value,))
        waiting.extend(reversed(inside))


def _check_claims(tensors: list[TensorProto]) -> None:
    """Refuse tensors whose stated shape is larger than their data."""
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
    """Return the number of elements held by the file itself; None if unknown."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return None
    if tensor.HasField("raw_data"):
        size = bytes_of(tensor, 1 << 20) / (1 << 20)
        return None if not size else int(len(tensor.raw_data) / size)
    # Elements stored in lists; packed and complex ones are not counted.
    fields = ("float_data", "int64_data", "double_data", "string_data", "uint64_data")
    held = [len(getattr(tensor, field)) for field in fields if len(getattr(tensor, field))]
    if held and tensor.data_type not in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return held[0]
    return None if len(tensor.int32_data) or not math.prod(tensor.dims) or held else 0


# The release of the file format that first knew something; older readers overlook it.
_FUNCTIONS: Final = 8
_OVERLOADS: Final = 10
_LINKS: Final = ("symbolic link", "multiple hard links")


def defects(path: Path) -> list[str]:
    """Return a sentence for each contradiction to onnx or to the file's own header."""
    model = read_model(path)
    result = [*_checked(path), *_inferred(model), *_imported_twice(model), *_too_old(model)]
    return list(dict.fromkeys(result))


def _checked(path: Path) -> list[str]:
    """Return the checker's first objection.

    Links of external data are no defect: a hard link only says that a file has a second name, and
    package managers make many.
    """
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 (the checker raises whatever its parts do)
        text = sentence(error)
        return [] if any(word in text for word in _LINKS) else [f"onnx.checker: {text}"]
    return []


def _inferred(model: ModelProto) -> list[str]:
    """Return where inferred shapes and types contradict the declared ones."""
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception as error:  # noqa: BLE001 (as above)
        text = sentence(error)
        first = text.partition("Inference error(s): ")[2] or text
        return [f"the declared shapes and types do not follow from the operators: {first}"]
    return []


def _imported_twice(model: ModelProto) -> list[str]:
    versions: dict[str, set[int]] = {}
    for opset in model.opset_import:
        versions.setdefault(_domain(opset.domain), set()).add(int(opset.version))
    return [
        f"the header names two versions of the operator set {domain or 'ai.onnx'!r}: {sorted(both)}"
        for domain, both in versions.items()
        if len(both) > 1
    ]


def _too_old(model: ModelProto) -> list[str]:
    """Return the features used that the header's release does not know."""
    release = model.ir_version
    result = []
    if model.functions and release < _FUNCTIONS:
        result.append(f"it has functions, which the format's version {release} does not know")
    if release < _OVERLOADS and any(node.overload for node in all_nodes(model)):
        result.append(f"it overloads functions, which the format's version {release} cannot")
    return result
