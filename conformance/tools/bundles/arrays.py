"""The tensors of a failure as files of arrays that NumPy reads without pickle.

Three files: the tensors of the problem, of the calls and layers, and of the comparison.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Arrays = dict[str, dict[str, Array]]
INPUTS: Final = "inputs.npz"
CALLS: Final = "calls.npz"
COMPARED: Final = "compared.npz"
_COMPARED_NAMES: Final = ("expected", "got", "bound", "judged")
# Members of an archive have no date: the same arrays make the same file.
_UNDATED: Final = zipfile.ZipInfo
# The parts of the description of a failure that hold tensors.
_PLACES: Final = ("inputs", "calls", "layers", *_COMPARED_NAMES)


def named_arrays(
    data: dict[str, Any], array_of: Callable[[dict[str, Any]], Array | None]
) -> Arrays:
    """Take the tensors out of a failure's description, which then refers to their files.

    ``array_of`` returns the elements of a table, None for elements that were not kept. Every table
    of the description receives its ``file`` and the name of its ``array`` in the file.
    """
    arrays: Arrays = {}
    for file, name, entry in _tables(data):
        array = array_of(entry)
        entry.pop("array", None)
        if array is not None:
            arrays.setdefault(file, {})[name] = array
            entry["file"], entry["array"] = file, name
    return arrays


def _tables(data: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for place in _PLACES:
        yield from list(_below(data.get(place), (place,)))


def _below(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The tables at or below a place, the innermost first."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _below(entry, (*path, str(name)))
        if {"shape", "dtype"} <= set(value):
            yield _file(path), _name(path), value
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, entry in enumerate(value):
            yield from _below(entry, (*path, str(number)))


def _file(path: tuple[str, ...]) -> str:
    if path[0] == "inputs":
        return INPUTS
    return CALLS if path[0] in ("calls", "layers") else COMPARED


def _name(path: tuple[str, ...]) -> str:
    """``call0.query``: a short name for a place."""
    kind = {"calls": "call", "layers": "layer"}.get(path[0])
    if kind is not None:
        rest = [word for word in path[2:] if word not in ("arguments", "keywords")]
        return ".".join((f"{kind}{path[1]}", *rest))
    return ".".join(path[1:] if path[0] == "inputs" else path)


def of_values(entry: Mapping[str, Any]) -> Array | None:
    """The elements of a table with values; None for other tables.

    Numbers that are not finite may be texts, as in a report.
    """
    if "values" not in entry:
        return None
    dtype = str(entry["dtype"])
    if dtype == "bfloat16":  # the upper half of the float32 that is equal to it
        whole = np.array(_numbers(entry["values"]), np.float32).reshape(entry["shape"])
        return (whole.view(np.uint32) >> 16).astype(np.uint16).reshape(entry["shape"])
    if dtype.startswith("float8"):  # the bits, as torch has them
        import torch  # noqa: PLC0415 (only here)

        numbers = torch.tensor(_numbers(entry["values"]), dtype=getattr(torch, dtype))
        bits: Array = numbers.view(torch.uint8).numpy()
        return bits.reshape(entry["shape"])
    return np.array(_numbers(entry["values"]), dtype).reshape(entry["shape"])


def _numbers(values: Any) -> Any:
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return float(values) if isinstance(values, str) else values


def write_arrays(arrays: Arrays, folder: Path) -> None:
    """Write each file; a file without arrays is left out."""
    for file, named in arrays.items():
        with zipfile.ZipFile(folder / file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in named.items():
                archive.writestr(_UNDATED(f"{name}.npy"), _as_npy(array))


def _as_npy(array: Array) -> bytes:
    written = io.BytesIO()
    np.lib.format.write_array(written, np.ascontiguousarray(array), allow_pickle=False)
    return written.getvalue()
