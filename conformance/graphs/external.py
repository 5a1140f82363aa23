"""Tensors that lie outside a model's own file, inside the graph's process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import onnx
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo

from .protocol import GraphRefused

_LONGEST_NAME: Final = 120
# What exporters call the file of weights beside ``model.onnx``.
_SIDECARS: Final = (".data", "_data")


def external_files(tensors: Iterable[TensorProto], path: Path) -> list[str]:
    """The files beside the graph that hold tensors of it, relative to its folder.

    Raises GraphRefused for a file outside that folder, missing, or too short. A hard link is a file
    like any other: nobody can tell which of its names came first.
    """
    found: dict[str, None] = {}
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            name = tensor.name[:_LONGEST_NAME]
            found[_checked(tensor, f"keeps its tensor {name!r}", path)] = None
    return sorted(found)


def relocate(tensors: Iterable[TensorProto], path: Path) -> None:
    """Name external data from the folder that a graph which is a link leads to."""
    home = path.resolve().parent
    for tensor in tensors if path.is_symlink() else ():
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = os.path.relpath(os.path.realpath(path.parent / entry.value), home)


def embedded(tensor: TensorProto, folder: Path) -> TensorProto:
    """A tensor with its bytes in it, wherever they lay; for a file that has a header.

    onnx itself would follow no link, and in a download cache all is behind links.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    told = {entry.key: entry.value for entry in tensor.external_data}
    start, size = _extent(tensor, "")
    with (folder / told["location"]).open("rb") as file:
        file.seek(start)
        held = file.read(size)
    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=held
    )


def external_size(tensors: Iterable[TensorProto]) -> int:
    """The bytes of all tensors that lie outside, after they were checked."""
    outside = [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]
    return sum(_extent(tensor, "")[1] for tensor in outside)


def stray_files(external: Iterable[str], path: Path) -> list[str]:
    """What is wrong with the files beside a graph that would open all the same.

    A model that is a link itself, as in a download cache, has its data behind links, too.
    """
    found = [
        f"its external data {name!r} are a symbolic link, which onnx does not follow: copy the file"
        for name in external
        if (path.parent / name).is_symlink() and not path.is_symlink()
    ]
    for suffix in _SIDECARS:
        beside = path.with_name(path.name + suffix)
        if beside.name not in external and beside.is_file() and beside.stat().st_size:
            found.append(f"{beside.name!r} lies beside it, but it uses nothing of that file")
    return found


def _checked(tensor: TensorProto, keeps: str, path: Path) -> str:
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
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
    held = file.stat().st_size
    if start + size > held:
        msg = f"{where}, which ends at byte {held} where {start + size} are needed: copy it again"
        raise GraphRefused(msg)
    return str(location)


def _escapes(location: str, path: Path) -> bool:
    """Whether a location leads out of the graph's folder, links followed.

    Where the graph itself is a link, its own folder is also the one that the link leads to.
    """
    if Path(location).is_absolute() or "\0" in location:
        return True
    place = os.path.realpath(path.parent / location)
    homes = {os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))}  # noqa: PTH120
    return all(os.path.commonpath([home, place]) != home for home in homes)


def _extent(tensor: TensorProto, where: str) -> tuple[int, int]:
    """The first byte of a tensor and how many there are."""
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
