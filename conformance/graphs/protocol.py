"""Messages between a process running foreign code and its parent: JSON, then arrays.

Nothing is pickled: code that takes over its process must not reach the parent. The head of a
graph's message names every array with dtype and shape; the bytes follow in this order.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

MEMORY: Final = 8 << 30  # bytes that a process may take which runs a graph


class GraphRefused(Exception):  # noqa: N818 (the graph's fault: the runtime said no)
    """The runtime refused to open or to run the graph; the child lives on."""


class GraphLost(Exception):  # noqa: N818 (the graph's fault: it hung, or killed its process)
    """The child that ran the graph is gone; ``kind`` is ``hung`` or ``crashed``.

    The next run starts a new child.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Head = dict[str, Any]

_SIZE: Final = struct.Struct("<Q")
_LARGEST_HEAD: Final = 64 << 20  # bytes of JSON
_JOINED: Final = 1 << 16  # below that one system call is cheaper than none of the copies
_KINDS: Final = "biufc"
BFLOAT16: Final = "bfloat16"


class ProtocolError(Exception):
    """What came, or is to be sent, is no message."""


def packed(value: Any, *, most: int = _LARGEST_HEAD) -> bytes:
    """Return JSON behind its length; raises ProtocolError above ``most`` bytes."""
    text = json.dumps(value).encode()
    if len(text) > most:
        msg = f"a head of {len(text)} bytes"
        raise ProtocolError(msg)
    return _SIZE.pack(len(text)) + text


def receive_json(
    end: socket.socket, *, most: int = _LARGEST_HEAD, deadline: float | None = None
) -> Any:
    """Receive a message of :func:`packed`.

    Raises EOFError or OSError when the sender is gone, TimeoutError at the deadline (of
    ``time.monotonic``), ProtocolError for invalid JSON or more than ``most`` bytes.
    """
    (size,) = _SIZE.unpack(_exactly(end, _SIZE.size, deadline))
    if size > most:
        msg = f"a head of {size} bytes"
        raise ProtocolError(msg)
    try:
        return json.loads(_exactly(end, size, deadline))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(type(error).__name__) from error


def send(end: socket.socket, head: Head, arrays: Mapping[str, Array]) -> None:
    """Send a message; raises OSError if the receiver is gone, TimeoutError if it is stuck."""
    parts = [_bytes(array) for array in arrays.values()]
    types = [[name, dtype_name(array.dtype), list(array.shape)] for name, array in arrays.items()]
    start = packed({"head": head, "arrays": types})
    if sum(part.nbytes for part in parts) <= _JOINED:
        end.sendall(b"".join((start, *parts)))
        return
    end.sendall(start)
    for part in parts:
        end.sendall(part)


def receive(end: socket.socket, *, most: int, deadline: float | None = None) -> tuple[Head, Arrays]:
    """Receive a message with at most ``most`` bytes of arrays.

    Raises EOFError or OSError when the sender is gone, TimeoutError at the deadline (of
    ``time.monotonic``), ProtocolError for a malformed message, MemoryError.
    """
    message = receive_json(end, deadline=deadline)
    try:
        types = [
            (str(name), numpy_dtype(str(kind)), tuple(shape))
            for name, kind, shape in message["arrays"]
        ]
        total = sum(kind.itemsize * math.prod(shape) for _, kind, shape in types)
        if total > most or any(axis < 0 for _, _, shape in types for axis in shape):
            msg = f"arrays of {total} bytes"
            raise ProtocolError(msg)
        head: Head = message["head"]
        arrays = {name: np.empty(shape, kind) for name, kind, shape in types}
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(str(error)) from error
    for array in arrays.values():
        _fill(end, _bytes(array), deadline)
    return head, arrays


@lru_cache(maxsize=64)  # numpy makes the name again each time
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return numpy's name of a dtype of numbers, or ``bfloat16``; raises TypeError for others."""
    if dtype.kind in _KINDS or dtype.name == BFLOAT16:
        return dtype.name
    msg = f"arrays of {dtype.name} are not numbers"
    raise TypeError(msg)


@lru_cache(maxsize=64)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name of :func:`dtype_name`; raises TypeError for others."""
    if name == BFLOAT16:
        return bfloat16()
    dtype: np.dtype[Any] = np.dtype(name)
    dtype_name(dtype)
    return dtype


def bfloat16() -> np.dtype[Any]:
    """Return onnx's dtype for bfloat16, which numpy lacks."""
    import onnx  # noqa: PLC0415 (few graphs need it)

    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _exactly(end: socket.socket, size: int, deadline: float | None) -> bytearray:
    into = bytearray(size)
    _fill(end, memoryview(into), deadline)
    return into


def _fill(end: socket.socket, into: memoryview, deadline: float | None) -> None:
    while into.nbytes:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            end.settimeout(left)
        got = end.recv_into(into)
        if not got:
            raise EOFError
        into = into[got:]


# Such as "[ONNXRuntimeError] : 1 : FAIL", also inside a quoting message.
_CODE: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
# The place in the source, with a function's whole signature or its name alone.
_LONG_SOURCE: Final = re.compile(r"/onnxruntime_src/\S+:\d+ [^()]*(?:\(\))?\([^()]*\)(?: const)? ")
_SHORT_SOURCE: Final = re.compile(r"\b[\w/.]+\.(?:cc|h):\d+ [\w:~<>]+(?:\(\))? ")
_NODE: Final = re.compile(
    r"Non-zero status code returned while running (\S+) node\. Name:'([^']*)' Status Message: "
)
# A node the runtime refuses to build, with the types of its inputs and outputs.
_BUILDING: Final = re.compile(
    r"This is an invalid model\. In Node, \(\"([^\"]*)\", (\w+), .*?\) -> .*? , (?:Error )?"
)
_LOADING: Final = re.compile(r"Load model from .*? failed: ?")
_CONTEXT: Final = "==> Context: "
_LONGEST: Final = 400


def _named(match: re.Match[str]) -> str:
    """Return the node a message is about: ``Reshape 'flat': ``."""
    operator, name = match.groups() if match.re is _NODE else match.groups()[::-1]
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
    first = lines[0] if lines else ""
    if first.endswith(":") and len(lines) > 1:
        first = f"{first} {lines[1]}"
    context = next((line for line in lines[1:] if line.startswith(_CONTEXT)), "")
    if context:
        first += f" ({context.removeprefix(_CONTEXT)})"
    return first[:_LONGEST]
