"""Reads the roles of an exported module, and shows a reading as one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graph_exports import export, runner
from torch import Tensor, nn

from conformance.graphs.reading import GraphReading
from conformance.graphs.roles import read_roles
from conformance.graphs.sidecar import GraphDeclaration
from conformance.graphs.validation import read_header

SEPARATE = {"q": {0: "b", 1: "sq"}, "k": {0: "b", 1: "sk"}, "v": {0: "b", 1: "sk"}}
HEADS_APART = {"q": {0: "b", 2: "sq"}, "k": {0: "b", 2: "sk"}, "v": {0: "b", 2: "sk"}}


def read(
    folder: Path,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Mapping[int, str]] | None = None,
    *,
    declaration: GraphDeclaration | None = None,
    **options: Any,
) -> GraphReading:
    """Export a module and read its roles."""
    path = export(folder / "graph.onnx", module, inputs, dynamic=axes, **options)
    return read_file(path, declaration)


def read_file(path: Path, declaration: GraphDeclaration | None = None) -> GraphReading:
    """Read the roles of a file."""
    return read_roles(read_header(path), runner(path), declaration or GraphDeclaration())


def shown(reading: GraphReading) -> str:
    """``q=query:BLE … -> y=output:BLE``."""
    inputs, outputs = (
        " ".join(f"{role.name}={role.role}:{role.axes}" for role in roles)
        for roles in (reading.inputs, reading.outputs)
    )
    return f"{inputs} -> {outputs}"


def counts(reading: GraphReading) -> dict[str, int | str]:
    """The pins, without widths."""
    return {name: pin for name, pin in reading.pins.items() if not name.endswith("_size")}
