"""onnxruntime's and onnx' messages in one line for readers."""

from __future__ import annotations

import re
from typing import Final

# Such as "[ONNXRuntimeError] : 1 : FAIL", also in the middle of a message that quotes another.
_CODE: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
# The place in the source, with the whole signature of a function or with its name alone.
_LONG_SOURCE: Final = re.compile(r"/onnxruntime_src/\S+:\d+ [^()]*(?:\(\))?\([^()]*\)(?: const)? ")
_SHORT_SOURCE: Final = re.compile(r"\b[\w/.]+\.(?:cc|h):\d+ [\w:~<>]+(?:\(\))? ")
_NODE: Final = re.compile(
    r"Non-zero status code returned while running (\S+) node\. Name:'([^']*)' Status Message: "
)
# A node that the runtime refuses to build, with the types of all that goes in and comes out.
_BUILDING: Final = re.compile(
    r"This is an invalid model\. In Node, \(\"([^\"]*)\", (\w+), .*?\) -> .*? , (?:Error )?"
)
_LOADING: Final = re.compile(r"Load model from .*? failed: ?")
_CONTEXT: Final = "==> Context: "
_LONGEST: Final = 400


def _named(found: re.Match[str]) -> str:
    """The node that a message is about: ``Reshape 'flat': ``."""
    operator, name = found.groups() if found.re is _NODE else found.groups()[::-1]
    return f"{operator} {name!r}: " if name else f"{operator}: "


def sentence(error: BaseException) -> str:
    """The first line that says something, without codes, source lines and the file's path."""
    text = str(error)
    for pattern in (_CODE, _LONG_SOURCE, _SHORT_SOURCE, _LOADING):
        text = pattern.sub("", text)
    for node in (_NODE, _BUILDING):
        text = node.sub(_named, text)
    text = text.replace("[ShapeInferenceError] ", "").replace("[TypeInferenceError] ", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = lines[0] if lines else ""
    if told.endswith(":") and len(lines) > 1:
        told = f"{told} {lines[1]}"
    context = next((line for line in lines[1:] if line.startswith(_CONTEXT)), "")
    if context:
        told += f" ({context.removeprefix(_CONTEXT)})"
    return told[:_LONGEST]
