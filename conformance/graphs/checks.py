"""What is wrong with a model file that opens, inside the graph's process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx
from onnx import ModelProto

from .parsing import all_nodes, read_model
from .wording import sentence

# The release of the file format that first knew something; older readers overlook it.
_FUNCTIONS: Final = 8
_OVERLOADS: Final = 10
_LINKS: Final = ("symbolic link", "multiple hard links")


def defects(path: Path) -> list[str]:
    """One sentence for each thing that onnx or the file's own header contradicts."""
    model = read_model(path)
    found = [*_checked(path), *_inferred(model), *_imported_twice(model), *_too_old(model)]
    return list(dict.fromkeys(found))


def _checked(path: Path) -> list[str]:
    """The checker's objection; it stops at the first.

    How external data are linked is no defect of the graph: that a file has a second name is all
    that a hard link says, and a package manager makes many.
    """
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 (the checker raises whatever its parts do)
        told = sentence(error)
        return [] if any(word in told for word in _LINKS) else [f"onnx.checker: {told}"]
    return []


def _inferred(model: ModelProto) -> list[str]:
    """Where the shapes and types that follow from the operators contradict those declared."""
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception as error:  # noqa: BLE001 (as above)
        return [f"the declared shapes and types do not follow from the operators: {_told(error)}"]
    return []


def _told(error: Exception) -> str:
    """The first of the places that inference names."""
    text = sentence(error)
    return text.partition("Inference error(s): ")[2] or text


def _imported_twice(model: ModelProto) -> list[str]:
    versions: dict[str, set[int]] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        versions.setdefault(domain, set()).add(int(opset.version))
    return [
        f"the header names two versions of the operator set {domain or 'ai.onnx'!r}: {sorted(told)}"
        for domain, told in versions.items()
        if len(told) > 1
    ]


def _too_old(model: ModelProto) -> list[str]:
    """What the file uses although the release that its header names does not know it."""
    release = model.ir_version
    found = []
    if model.functions and release < _FUNCTIONS:
        found.append(f"it has functions, which the format's version {release} does not know")
    if release < _OVERLOADS and any(node.overload for node in all_nodes(model)):
        found.append(f"it overloads functions, which the format's version {release} cannot")
    return found
