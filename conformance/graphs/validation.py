"""Statements of a model file about itself, read in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from ..base.printable_text import printable, size_text
from ..errors import UsageError
from .process import GraphProcess, Setting
from .protocol import GraphLost, GraphRefused
from .reading import Header, Port

LARGEST_FILE: Final = 2**31 - 1  # what a protobuf message can hold
_LFS: Final = b"version https://git-lfs.github.com/"
_START: Final = 512
_REASONS: Final = (
    (
        re.compile(r"Opset (\d+) is under development.* till opset (\d+)"),
        (
            "is of opset {0}, newer than the {1} that the installed onnxruntime supports: "
            "export it at opset {1} or lower"
        ),
    ),
    (
        re.compile(r"model IR version: (\d+), max supported IR version: (\d+)"),
        (
            "is of the file format's version {0}, newer than the {1} that the installed "
            "onnxruntime reads: export it with an older onnx, or install a newer onnxruntime"
        ),
    ),
    (
        re.compile(r"No Op registered for (\w+) with domain_version of (\d+)"),
        (
            "uses the operator {0}, which the opset {1} of its header does not have: export it "
            "again, at an opset that has it"
        ),
    ),
)
_LOWEST: Final = Setting(level="disabled")


def read_header(path: Path) -> Header:
    """Read the header of a model file that onnxruntime opens.

    Raises UsageError with one sentence (problem, place, remedy) for a damaged file, a file without
    a graph, or a file refused by onnxruntime. A graph that kills or hangs its process when opened
    still has a header: the later runs will report the failure.
    """
    _check_file(path)
    with GraphProcess(path) as process:
        try:
            data: dict[str, Any] = process.request("header")[0]["result"]
        except GraphRefused as error:
            msg = printable(f"{path} {error}")
            raise UsageError(msg) from None
        except GraphLost as lost:
            msg = printable(f"{path} cannot be read: the process that read it {lost}")
            raise UsageError(msg) from None
        try:
            process.open(setting=_LOWEST)
        except GraphRefused as error:
            msg = printable(f"{path} {_why_closed(str(error))}")
            raise UsageError(msg) from None
        except GraphLost:
            pass  # a verdict, by the first run
    changed = {name: tuple(map(_port, data[name])) for name in ("inputs", "outputs")}
    changed |= {name: tuple(data[name]) for name in ("external", "stray", "random")}
    return Header(path=path, **{**data, **changed, "operators": frozenset(data["operators"])})


def _port(data: dict[str, Any]) -> Port:
    shape = data["shape"]
    return Port(**{**data, "shape": None if shape is None else tuple(shape)})


def _check_file(path: Path) -> None:
    """Refuse files that are no graph, without a parser."""
    if path.is_dir():
        msg = f"{path} is a folder: name the .onnx file in it"
        raise UsageError(msg)
    if not path.exists():
        msg = f"there is no file {path}: check the path"
        raise UsageError(msg)
    if not path.is_file():
        msg = f"{path} is no regular file: name an .onnx file"
        raise UsageError(msg)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    reason = _no_graph(start, size)
    if reason:
        msg = f"{path} {reason}"
        raise UsageError(msg)


def _no_graph(start: bytes, size: int) -> str:
    if not size:
        return "is empty: export the graph again"
    if size > LARGEST_FILE:
        return (
            f"has {size_text(size)}, more than the 2 GiB that an ONNX file can hold: "
            "export it with its weights in a file of their own (external data)"
        )
    if start.startswith(_LFS):
        return "is a pointer of Git LFS, not the graph itself: fetch it with `git lfs pull`"
    text = start.decode("ascii", errors="replace")
    if all(letter.isprintable() or letter in "\t\r\n" for letter in text) and "�" not in text:
        return "is a text file, no ONNX graph: name the file that an exporter wrote"
    return ""


def _why_closed(message: str) -> str:
    """Return onnxruntime's reason for not opening a graph, with advice on common ones."""
    for pattern, sentence in _REASONS:
        if match := pattern.search(message):
            return sentence.format(*match.groups())
    return f"cannot be opened by onnxruntime: {message}"


def defects(path: Path) -> tuple[str, ...]:
    """Return a sentence for each defect of an openable file; empty for a valid graph."""
    with GraphProcess(path) as process:
        try:
            return tuple(map(printable, process.request("defects")[0]["result"]))
        except GraphRefused as error:
            return (printable(str(error)),)
        except GraphLost as lost:
            return (printable(f"onnx's checker, run on it, {lost}"),)
