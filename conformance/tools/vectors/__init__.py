"""Test vectors for people in other languages: their format, and ``conformance vectors --check``.

The check of a folder's completeness needs neither torch nor numpy; ``writing`` makes the vectors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ...errors import UsageError

# Incremented when readers of the previous format would misread the new one.
FORMAT: Final = 1
INDEX: Final = "index.json"
CASES: Final = "cases"
SCHEMAS: Final = ("index.schema.json", "case.schema.json")
README: Final = "README.md"
# Every tensor begins at a multiple of so many bytes.
ALIGNED: Final = 8
SIZES: Final = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "bool": 1,
}


Record = Mapping[str, Any]


def check_vectors(folder: Path) -> tuple[int, list[str]]:
    """The number of cases that a folder lists, and a sentence for every defect.

    Raises UsageError for a folder that holds no vectors, or vectors of another format.
    """
    index = _index(folder)
    faults = [fault for entry in index["cases"] for fault in _faults(folder, entry)]
    faults += _strays(folder, index)
    return len(index["cases"]), faults


def _index(folder: Path) -> Record:
    path = folder / INDEX
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = f"{folder} holds no test vectors: there is no {INDEX} in it"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise UsageError(msg) from None
    except (ValueError, RecursionError) as error:
        msg = f"{path} is no JSON: {error}"
        raise UsageError(msg) from None
    if not isinstance(data, dict) or not _is_list(data.get("cases")):
        msg = f"{path} is no index of test vectors: it lists no cases"
        raise UsageError(msg)
    if data.get("format") != FORMAT:
        msg = f"{path} has format {data.get('format')!r}; this version reads format {FORMAT}"
        raise UsageError(msg)
    if not data["cases"]:
        msg = f"{path} lists no cases: there is nothing to check"
        raise UsageError(msg)
    return data


def _is_list(cases: Any) -> bool:
    return isinstance(cases, list) and all(
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), str) for name in ("id", "file", "sha256"))
        for entry in cases
    )


def _faults(folder: Path, entry: Record) -> Iterator[str]:
    """The defects of a case: in its description, its data, or the places of its tensors."""
    name = entry["file"]
    text, fault = _read(folder, name, entry["sha256"])
    if fault:
        yield fault
        return
    try:
        case = json.loads(text)
        data, places = case["data"], case["tensors"]
        file = f"{CASES}/{data['file']}"
        held, fault = _read(folder, file, data["sha256"])
        if fault:
            yield fault
            return
        yield from _misplaced(file, places, len(held))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield f"{name} does not describe a case"


def _read(folder: Path, name: str, digest: str) -> tuple[bytes, str]:
    """The bytes of a file of the folder, and a sentence for every defect of the file."""
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        return b"", f"{name} lies outside the folder"
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return b"", f"{name} cannot be read: {reason}"
    if hashlib.sha256(data).hexdigest() != digest:
        return b"", f"{name} is not what was written: its SHA-256 is another"
    return data, ""


def _misplaced(file: str, places: Record, size: int) -> Iterator[str]:
    for name, place in places.items():
        count = math.prod(place["shape"]) * SIZES[place["dtype"]]
        offset = place["offset"]
        negative = min(offset, *place["shape"], 0) < 0
        if negative or place["bytes"] != count or offset % ALIGNED or offset + count > size:
            yield f"{file}: the tensor {name} does not lie where it is said to"


def _strays(folder: Path, index: Record) -> Iterator[str]:
    """A sentence for every file among the cases that the index does not list."""
    listed = {Path(entry["file"]).stem for entry in index["cases"]}
    for path in sorted((folder / CASES).glob("*")):
        if path.stem not in listed or path.suffix not in (".json", ".bin"):
            yield f"{CASES}/{path.name} is not in the index"
