"""Torch's devices by name, and bringing tensors, weights and modules to one and back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .._golden import golden
from ..adapters.trial import is_in_dtype, put_in_dtype
from ..base.results import absent_device
from ..declare.candidate import Candidate

CPU: Final = "cpu"


def canonical(name: str) -> str:
    """Return a device's name in its tensors: ``cuda`` is ``cuda:0``, ``cpu:0`` is ``cpu``.

    Unchanged for a device this machine lacks.
    """
    return name if why_absent(name) else str(torch.empty(0, device=name).device)


def why_absent(name: str) -> str:
    """Why no tensor can be made on a device, in one clause of a sentence, or ""."""
    try:
        kind = torch.device(name).type
    except (RuntimeError, TypeError):
        return f"torch knows no such device; {here()}"
    if kind == "meta":
        return "it holds no values, so nothing can be checked on it"
    try:
        torch.empty(1, device=name).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"{here()} ({lines[0].rstrip('.')})"
    return ""


def why_unusable(candidate: Candidate, device: str) -> str:
    """Why a candidate cannot be judged on a device, or ""."""
    reason = why_absent(device)
    if reason:
        return f"{absent_device(device)}: {reason}"
    if device == "cpu":
        return ""
    if candidate.graph is not None:
        return f"onnxruntime runs it on the CPU, not on {device}"
    if candidate.declaration.arrays != "torch":
        return f"its {candidate.declaration.arrays} arrays are made on the CPU, not on {device}"
    return ""


def here() -> str:
    """Describe the devices torch sees besides the CPU."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return "torch sees no device but the CPU here"
    count = torch.accelerator.device_count()
    named = f"{device.type}:0" if count == 1 else f"{device.type}:0 to {device.type}:{count - 1}"
    return f"torch sees the CPU and {named} here"


def kind_of(name: str) -> str:
    """The type of a device: ``cuda`` of ``cuda:1``."""
    return torch.device(name).type


def module_of(name: str) -> ModuleType | Any:
    """Return torch's module for a device, such as ``torch.cuda``, or None."""
    try:
        return torch.get_device_module(kind_of(name))
    except RuntimeError:
        return None


def offers(name: str, *functions: str) -> bool:
    """Whether torch's module for a device has all of some functions."""
    module = module_of(name)
    return module is not None and all(hasattr(module, function) for function in functions)


@contextlib.contextmanager
def forked_random(name: str) -> Iterator[None]:
    """Restore torch's random state afterwards, of the CPU and of one device."""
    index, devices = torch.device(name).index, []
    if kind_of(name) != CPU and offers(name, "get_rng_state", "set_rng_state"):
        devices = [0 if index is None else index]
    kind = kind_of(name) if devices else "cuda"  # of no device at all the kind does not matter
    with torch.random.fork_rng(devices=devices, device_type=kind):
        yield


def seed_random(name: str, seed: int) -> None:
    """Seed torch's random numbers, of the CPU or of every device.

    Seeding every device takes milliseconds even without a device besides the CPU.
    """
    if kind_of(name) == CPU:
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def synchronise(name: str) -> None:
    """Wait for all operations on a device; raises their failures."""
    if kind_of(name) != CPU and offers(name, "synchronize"):
        module_of(name).synchronize(name)


Arguments = tuple[tuple[Tensor, ...], dict[str, Any]]


class Mover:
    """Moves tensors to one device; shared tensors and storages stay shared."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._storages: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def move(self, value: Any) -> Any:
        """Return a tensor's copy on the device in the same layout; other objects as is."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._tensors:  # kept alive here, so that no other gets its id
            self._tensors[id(value)] = (value, self._moved(value))
        return self._tensors[id(value)][1]

    def _moved(self, tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided or tensor.is_nested:
            return tensor.detach().to(self.device)
        place = tensor.stride(), tensor.storage_offset()
        return self._storage(tensor).as_strided(tensor.shape, *place)

    def _storage(self, tensor: Tensor) -> Tensor:
        """Return the whole storage of a tensor as a row of elements on the device."""
        key = (tensor.untyped_storage()._cdata, tensor.dtype)  # noqa: SLF001 (torch's own identity of a storage)
        if key not in self._storages:
            whole = whole_storage(tensor)
            self._storages[key] = (tensor, whole.to(self.device, copy=True))
        return self._storages[key][1]


def whole_storage(tensor: Tensor) -> Tensor:
    """Everything that lies in the memory a tensor is a view of, as elements in a row."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0)


# Bits are compared, so that NaN equals itself and zero does not equal its negative.
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: Tensor) -> Tensor:
    """The bits of a tensor's elements as integers, in its own memory."""
    values = tensor.detach() if tensor.requires_grad else tensor
    return values.view(_BITS[tensor.element_size()])


def placed(arguments: Arguments, device: str) -> Arguments:
    """Return a call's arguments on a device; on the CPU they are there already."""
    return arguments if device == CPU else moved(arguments, device)


def moved(arguments: Arguments, device: str) -> Arguments:
    """Copies of the arguments on a device; strides, offsets and shared storages stay."""
    mover, (positional, keywords) = Mover(device), arguments
    there = {name: mover.move(value) for name, value in keywords.items()}
    return tuple(mover.move(value) for value in positional), there


def taken(tensor: Tensor) -> Tensor:
    """A copy of a tensor's values on the CPU, without its history."""
    return tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()


def weights_on(
    weights: golden.ProjectionWeights | None, device: str
) -> golden.ProjectionWeights | None:
    """The projections of a layer on a device; copies, as a builder may write into them."""
    if weights is None:
        return None
    mover = Mover(device)
    given = {role: each for role, each in vars(weights).items() if each is not None}
    copies = {role: mover.move(each) for role, each in given.items()}
    return dataclasses.replace(weights, **copies)


_COPIES: WeakKeyDictionary[nn.Module, dict[str, nn.Module]] = WeakKeyDictionary()
_IN_DTYPE: WeakKeyDictionary[nn.Module, dict[torch.dtype, nn.Module]] = WeakKeyDictionary()


def module_on(forward: Any, device: str, *, fresh: bool) -> Any:
    """Return a module on a device; other objects, and modules already there, as is.

    A module built for one call (``fresh``) is moved itself; of the user's own module a copy is
    moved once, unless it cannot be copied.
    """
    if not isinstance(forward, nn.Module) or not _elsewhere(forward, torch.device(device)):
        return forward
    if fresh:
        return forward.to(device)
    copies = _COPIES.setdefault(forward, {})
    if device not in copies:
        copies[device] = _copied(forward).to(device)
    return copies[device]


def module_in_dtype(
    forward: Any, dtype: torch.dtype, answers: Callable[[nn.Module], bool], *, rounds: bool
) -> Any:
    """Return the user's own module as it can be judged in a dtype; other objects as is.

    A module of another dtype that answers converts by itself; with ``rounds`` its parameters keep
    their dtype and are rounded to the judged one, like the golden's weights. Otherwise a copy is
    cast to the dtype once, as a user would. ``answers`` tests a module in this dtype. If neither
    answers, the user's own is returned, and its exception is reported.
    """
    if not isinstance(forward, nn.Module) or is_in_dtype(forward, dtype):
        return forward
    chosen = _IN_DTYPE.setdefault(forward, {})
    if dtype not in chosen:
        chosen[dtype] = _chosen(forward, dtype, answers, rounds=rounds)
    return chosen[dtype]


def _chosen(
    own: nn.Module, dtype: torch.dtype, answers: Callable[[nn.Module], bool], *, rounds: bool
) -> nn.Module:
    converts = answers(own)
    copied = own if converts and not rounds else _copied(own)
    if copied is own:
        return own
    if not converts:
        copied = put_in_dtype(copied, dtype)
        return copied if answers(copied) else own
    for parameter in copied.parameters():  # each at the nearest numbers that the dtype has
        if parameter.is_floating_point():
            parameter.data.copy_(parameter.data.to(dtype))
    return copied


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return module


def _elsewhere(module: nn.Module, device: torch.device) -> bool:
    """Tell whether a parameter or buffer lies on another device, meta tensors aside."""
    tensors: Iterable[Tensor] = (*module.parameters(), *module.buffers())
    return any(tensor.device != device and not tensor.is_meta for tensor in tensors)
