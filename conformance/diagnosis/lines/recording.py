"""Records the operations of one call: their results, operands and user lines."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..._golden import golden
from ...calls.calling import PLAIN, guarded, is_tensor

# The limits of a recording: a larger call has no line.
MOST_OPERATIONS: Final = 2000
MOST_NUMBERS: Final = 2**21
# Frames of a user's own that lead to an operation, from the innermost one.
MOST_FRAMES: Final = 40

_HARNESS: Final = Path(__file__).resolve().parents[2]
_STRANGE: Final = tuple(
    f"{folder}/"
    for folder in (
        _HARNESS,
        Path(str(golden.__file__)).resolve().parent,
        Path(str(torch.__file__)).resolve().parent,
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)
# Methods that write into their first argument, beside those whose name ends with "_".
_WRITING: Final = frozenset(
    f"__{name}__"
    for name in (
        *("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
        *("iand", "ior", "ixor", "imatmul", "ilshift", "irshift"),
    )
)
# Methods by which a value leaves torch and loses its history.
_LEAVING: Final = frozenset({"numpy", "__array__", "tolist", "data_ptr", "__dlpack__"})

Memory = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's own code."""

    file: str
    number: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One tensor that a call made or received.

    ``value`` is a copy, ``inputs`` are the numbers of its operand operations, ``places`` are the
    user's lines that led to it, outermost first. ``given`` marks arguments of the call. A tensor
    from elsewhere, such as a module's weight, has neither inputs nor places.
    """

    name: str
    value: Tensor
    inputs: tuple[int, ...] = ()
    places: tuple[SourceLine, ...] = ()
    given: bool = False


@dataclass
class OperationRecording:
    """The operations of a call in order, and the number of its answer.

    ``complete`` is False if something cannot be followed: an unknown kind of tensor, values that
    left torch, or too many operations.
    """

    operations: list[Operation] = field(default_factory=list)
    answer: int | None = None
    complete: bool = True


class Recorder(TorchFunctionMode):
    """Records the computation while entered.

    A torch operation called by Python counts as one, without inner calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recording = OperationRecording()
        self._numbers = 0
        # Tensors are kept alive, so that no identity or memory is reused.
        self._alive: list[Any] = []
        self._by_identity: dict[int, int] = {}
        self._by_memory: dict[Memory, int] = {}
        self._writes: dict[int, list[int]] = {}

    def give(self, tensors: Iterator[Tensor]) -> None:
        """Register tensors as arguments of the call."""
        for tensor in tensors:
            self._add(tensor, "", given=True)

    def answered(self, output: Any) -> OperationRecording:
        """Return the recording of a call whose output is a tensor, or a tuple led by a tensor."""
        if isinstance(output, tuple) and output:
            output = output[0]
        if is_tensor(output) and self.recording.complete:
            self.recording.answer = self._number_of(output)
        return self.recording

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call an operation, and record each tensor made or overwritten."""
        del types
        keywords = kwargs or {}
        name = str(getattr(func, "__name__", ""))
        if name in _LEAVING:
            self.recording.complete = False
        if not self.recording.complete:
            return func(*args, **keywords)
        # A tensor that only takes a shape or dtype from another has no operand.
        sized = name.startswith("new_") or name.endswith("_like")
        used = [] if sized else [self._number_of(one) for one in tensors_of((args, keywords))]
        result = func(*args, **keywords)
        target = keywords.get("out")
        if target is None and args and _is_writing(name):
            target = args[0]
        places = places_of(sys._getframe(1))  # noqa: SLF001 (the only way to the caller's line)
        written = list(tensors_of(target))
        for tensor in written:
            number = self._add(tensor, name, tuple(used), places)
            self._writes.setdefault(_storage(tensor), []).append(number)
        for tensor in tensors_of(result):
            if id(tensor) not in self._by_identity:
                self._add(tensor, name, tuple(used), places)
        return result

    def _number_of(self, tensor: Tensor) -> int:
        number = self._by_identity.get(id(tensor), self._by_memory.get(_memory(tensor)))
        if number is None:
            return self._add(tensor, "")
        later = [one for one in self._writes.get(_storage(tensor), []) if one > number]
        if not later:
            return number
        places = self.recording.operations[later[-1]].places if later else ()
        return self._add(tensor, "written", (number, *later), places)

    def _add(
        self,
        tensor: Tensor,
        name: str,
        inputs: tuple[int, ...] = (),
        places: tuple[SourceLine, ...] = (),
        *,
        given: bool = False,
    ) -> int:
        recording = self.recording
        self._numbers += tensor.numel()
        full = len(recording.operations) >= MOST_OPERATIONS or self._numbers > MOST_NUMBERS
        if full or type(tensor) not in PLAIN or tensor.layout != torch.strided:
            recording.complete = False
            return 0
        self._alive.append(tensor)
        number = len(recording.operations)
        recording.operations.append(
            Operation(name, tensor.detach().clone(), inputs, places, given=given)
        )
        self._by_identity[id(tensor)] = self._by_memory[_memory(tensor)] = number
        return number


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists, dicts and slices."""
    if is_tensor(value):
        yield value
    elif isinstance(value, slice):
        yield from tensors_of((value.start, value.stop, value.step))
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from tensors_of(entry)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def _is_writing(name: str) -> bool:
    return name in _WRITING or (name.endswith("_") and not name.endswith("__"))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _memory(tensor: Tensor) -> Memory:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())


def places_of(frame: FrameType | None) -> tuple[SourceLine, ...]:
    """Return the user's lines that lead to a frame, outermost first."""
    places: list[SourceLine] = []
    while frame is not None and len(places) < MOST_FRAMES:
        if frame.f_code is guarded.__code__:  # what called the harness is no part of the call
            break
        if _is_own(frame.f_code.co_filename):
            places.append(SourceLine(frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(places))


@functools.cache
def _is_own(file: str) -> bool:
    """Whether a file is a user's: not of Python, torch, the harness or an installed package."""
    if file.startswith("<"):
        return False
    path = str(Path(file).resolve())
    return not path.startswith(_STRANGE) and Path(path).is_file()
