"""Tensors that lie outside a model's own file, inside the graph's process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo

from .lost import GraphRefused

_LONGEST_NAME: Final = 120


def external_files(tensors: Iterable[TensorProto], folder: Path) -> list[str]:
    """The files beside the graph that hold tensors of it, relative to its folder.

    Raises GraphRefused for a file outside that folder, missing, or too short. A hard link is a file
    like any other: nobody can tell which of its names came first.
    """
    found: dict[str, None] = {}
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            name = tensor.name[:_LONGEST_NAME]
            found[_checked(tensor, f"keeps its tensor {name!r}", folder)] = None
    return sorted(found)


def _checked(tensor: TensorProto, keeps: str, folder: Path) -> str:
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
    where = f"{keeps} in {location[:_LONGEST_NAME]!r}"
    if not location:
        msg = f"{keeps} outside its own file, but does not say where: export it again"
        raise GraphRefused(msg)
    if _escapes(location, folder):
        msg = f"{where}, outside its own folder: move that file beside it and export it again"
        raise GraphRefused(msg)
    file = folder / location
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


def _escapes(location: str, folder: Path) -> bool:
    """Whether a location leads out of a folder, links followed."""
    if Path(location).is_absolute() or "\0" in location:
        return True
    home = os.path.realpath(folder)
    return os.path.commonpath([home, os.path.realpath(folder / location)]) != home


def _extent(tensor: TensorProto, where: str) -> tuple[int, int]:
    """The first byte of a tensor and how many there are."""
    from .parsing import bytes_of  # noqa: PLC0415 (it imports this module)

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
