"""Messages between judge and candidate: a head in JSON, and tensors in shared memory.

Nothing is unpickled in either direction. Data from the candidate's side is checked by kind and
size, and its numbers are copied before use: they may change meanwhile.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ...graphs.protocol import Head, ProtocolError, packed, receive_json

ARENA: Final = 2 << 30  # bytes that a call's tensors and its answer may have; used ones cost memory
_LARGEST_HEAD: Final = 4 << 20  # bytes of JSON
_ALIGNED: Final = 64
_MOST_AXES: Final = 16
_DTYPES: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, name)
    for name in (
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "complex32"),
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    )
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
# The process's report of having its own namespaces.
OWN_NUMBERS: Final = "user and processes of its own"
# The reported end of a process exceeding the memory limit with its descendants.
TOO_MUCH: Final = "memory"


def send(end: socket.socket, head: Head) -> None:
    """Send a head; raises OSError if the receiver is gone, ProtocolError for large heads."""
    end.sendall(packed(head, most=_LARGEST_HEAD))


def receive(end: socket.socket) -> Head:
    """The next head; raises EOFError or OSError when the other end is gone, ProtocolError."""
    head = receive_json(end, most=_LARGEST_HEAD)
    if not isinstance(head, dict):
        msg = "a head that is no object"
        raise ProtocolError(msg)
    return head


def new_arena(most: int = ARENA) -> int:
    """Return a descriptor of shared memory of a fixed size, at most ARENA.

    A candidate could fill this memory beyond its own limit.
    """
    import fcntl  # noqa: PLC0415 (not on Windows)

    arena = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(arena, min(most, ARENA))
    # Shrinking would kill a reader of the memory.
    fcntl.fcntl(
        arena, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    return arena


class Arena:
    """Shared memory: the call at its start, the answer behind."""

    def __init__(self, descriptor: int) -> None:
        self._size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self._size)

    def bytes_at(self, place: int, count: int) -> Tensor:
        """So many bytes ``[count]`` in a storage of their own; ProtocolError beyond the end."""
        if not 0 <= place <= place + count <= self._size:
            msg = f"{count} bytes at {place}"
            raise ProtocolError(msg)
        if not count:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._map, dtype=torch.uint8, count=count, offset=place)

    def put(self, tensors: Sequence[Tensor], place: int) -> tuple[list[Head], int]:
        """Write dense tensors in sequence; returns their descriptions and the end offset."""
        described = []
        for tensor in tensors:
            plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
            count = plain.numel() * plain.element_size()
            self.bytes_at(place, count).copy_(bytes_of(plain))
            described.append({"dtype": _name(plain), "shape": list(plain.shape), "at": place})
            place = aligned(place + count)
        return described, place

    def take(self, described: Any) -> list[Tensor]:
        """Return copies of tensors written by :meth:`put`; raises ProtocolError if malformed."""
        if not isinstance(described, list):
            msg = "no list of tensors"
            raise ProtocolError(msg)
        tensors, left = [], self._size  # many could lie in the same place
        for entry in described:
            tensors.append(self._taken(entry, left))
            left -= tensors[-1].nbytes
        return tensors

    def _taken(self, entry: Any, most: int) -> Tensor:
        dtype = _DTYPES.get(str(field(entry, "dtype", str)))
        shape, place = field(entry, "shape", list), field(entry, "at", int)
        if dtype is None or len(shape) > _MOST_AXES:
            msg = "a tensor of no known kind"
            raise ProtocolError(msg)
        if any(type(axis) is not int or axis < 0 for axis in shape) or (
            math.prod(axis or 1 for axis in shape) > ARENA  # torch computes strides of empty ones
        ):
            msg = "a tensor of no size"
            raise ProtocolError(msg)
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        count = math.prod(shape) * dtype.itemsize
        if count > most:
            msg = "more than could lie there"
            raise ProtocolError(msg)
        return self.bytes_at(place, count).clone().view(dtype).reshape(shape)


def field(entry: Any, name: str, kind: type) -> Any:
    """What a description holds under a name; raises ProtocolError where that is of another kind."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if type(value) is not kind:
        msg = f"no {name}"
        raise ProtocolError(msg)
    return value


def aligned(place: int) -> int:
    """The next place where any number may begin."""
    return -(-place // _ALIGNED) * _ALIGNED


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, in its own memory."""
    size = tensor.element_size()
    return _bytes(tensor, int(tensor.storage_offset()) * size, tensor.numel() * size)


def whole_bytes(tensor: Tensor) -> Tensor:
    """Return all bytes of the tensor's storage, including bytes outside the tensor."""
    return _bytes(tensor, 0, tensor.untyped_storage().nbytes())


def _bytes(tensor: Tensor, first: int, count: int) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8)
    made: Tensor = empty.set_(tensor.untyped_storage(), first, (count,), (1,))
    return made


def can_be_sent(tensor: Tensor) -> bool:
    """Whether a dense tensor is of a dtype that both sides know."""
    return tensor.dtype in _NAMES


def _name(tensor: Tensor) -> str:
    name = _NAMES.get(tensor.dtype)
    if name is None:
        msg = f"a tensor of {tensor.dtype}"
        raise ProtocolError(msg)
    return name


class Handed:
    """The tensors of a request in the arena, with their memory layout.

    Tensors sharing a storage still share it; :meth:`fetch` reads back writes. ``end`` is the offset
    where the answer may begin.
    """

    def __init__(self, arena: Arena, tensors: Iterable[Tensor]) -> None:
        self.described: list[Head] = []
        self.storages: list[list[int]] = []
        self._held: list[tuple[Tensor, Tensor]] = []
        places: dict[int, int] = {}
        place = 0
        for tensor in tensors:
            whole = whole_bytes(tensor.detach())
            start = whole.data_ptr()
            if start not in places or not start:
                places[start] = len(self.storages)
                shared = arena.bytes_at(place, whole.numel())
                shared.copy_(whole)
                self.storages.append([place, whole.numel()])
                self._held.append((whole, shared))
                place = aligned(place + whole.numel())
            self.described.append(
                {
                    "in": places[start],
                    "dtype": _name(tensor),
                    "shape": list(tensor.shape),
                    "strides": list(tensor.stride()),
                    "from": tensor.storage_offset(),
                    "asks": tensor.requires_grad,
                }
            )
        self.end = place

    def fetch(self) -> None:
        """Copy writes made on the other side back into the tensors."""
        for whole, shared in self._held:
            if not torch.equal(whole, shared):
                whole.copy_(shared)


def handed_over(
    arena: Arena, head: Head, *, copied: bool
) -> tuple[list[Tensor], Callable[[], None]]:
    """Return the tensors of a request and a function that makes writes into copies visible.

    The tensors lie in the arena, or if ``copied`` in memory of their own.
    """
    shared = [arena.bytes_at(*entry) for entry in head["storages"]]
    storages = [each.clone() for each in shared] if copied else shared

    def write_back() -> None:
        for own, theirs in zip(storages, shared, strict=True):
            if copied and not torch.equal(own, theirs):
                theirs.copy_(own)

    tensors = []
    for entry in head["tensors"]:
        tensor = torch.empty(0, dtype=_DTYPES[entry["dtype"]]).set_(
            storages[entry["in"]].untyped_storage(), entry["from"], entry["shape"], entry["strides"]
        )
        tensors.append(tensor.requires_grad_() if copied and entry["asks"] else tensor)
    return tensors, write_back


def written(value: Any, numbers: dict[int, int]) -> Any:
    """Write an argument as JSON: a tensor as its number (by ``id``), tuples and plain values."""
    if isinstance(value, Tensor):
        return {"tensor": numbers[id(value)]}
    if isinstance(value, tuple):
        return {"tuple": [written(each, numbers) for each in value]}
    return value


def read(value: Any, tensors: Sequence[Tensor]) -> Any:
    """The argument of :func:`written`."""
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return tuple(read(each, tensors) for each in value["tuple"])
    return value
