"""Where a candidate is written, as formats that point at files want it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

Record = Mapping[str, Any]
_FILES: Final = (".py", ".onnx")


def file_of(candidate: Record) -> str:
    """The candidate's file with slashes, from the repository's root; "" where none is known.

    Records of older versions have no ``location``; their targets may still begin with a file.
    """
    location = candidate.get("location") or {}
    if location.get("file"):
        return str(location["file"])
    target = str(candidate.get("target") or "").replace("\\", "/")
    path, colon, _ = target.rpartition(":")
    found = path if colon and path.endswith(_FILES) else target
    return found if found.endswith(_FILES) else ""


def line_of(candidate: Record) -> int | None:
    """The line there, None where it is not known."""
    line = (candidate.get("location") or {}).get("line")
    return line if isinstance(line, int) and line > 0 else None


def uri_of(file: str) -> str:
    """A path as a reference of RFC 3986: relative, or a ``file:`` URI of an absolute one."""
    if file.startswith("/"):
        return f"file://{quote(file)}"
    if file[1:3] == ":/":  # a drive
        return f"file:///{file[:2]}{quote(file[2:])}"
    return quote(file)
