"""Brings tensors, weights and modules to a device, and tensors back, as they lie in memory.

A kernel is tried with strides, offsets and shared storages: each storage is copied whole, once, and
its tensors are laid over the copy as they lay over the original.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .._golden import golden
from ..adapters.copying import is_in_dtype, put_in_dtype

Given = tuple[tuple[Tensor, ...], dict[str, Any]]


class Mover:
    """Moves tensors to one device; what was one tensor or one storage is one there, too."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._storages: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def move(self, value: Any) -> Any:
        """A tensor's copy there in the same layout; anything else as it is."""
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
        """Everything in the storage of a tensor, as elements in a row, on the device."""
        key = (tensor.untyped_storage()._cdata, tensor.dtype)  # noqa: SLF001 (torch's own identity of a storage)
        if key not in self._storages:
            whole = whole_storage(tensor)
            self._storages[key] = (tensor, whole.to(self.device, copy=True))
        return self._storages[key][1]


def whole_storage(tensor: Tensor) -> Tensor:
    """Everything that lies in the memory a tensor is a view of, as elements in a row."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0)


def placed(given: Given, device: str) -> Given:
    """The arguments of a call on a device; on the CPU they are there already."""
    if device == "cpu":
        return given
    mover = Mover(device)
    positional, keywords = given
    moved = {name: mover.move(value) for name, value in keywords.items()}
    return tuple(mover.move(value) for value in positional), moved


def brought_back(given: Given) -> Given:
    """Copies of the arguments of a call on the CPU, each laid out as it lay there."""
    mover = Mover("cpu")
    positional, keywords = given
    moved = {name: mover.move(value) for name, value in keywords.items()}
    return tuple(mover.move(value) for value in positional), moved


def taken(tensor: Tensor) -> Tensor:
    """A copy of a tensor's values on the CPU, without its history."""
    return tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()


def weights_on(
    weights: golden.ProjectionWeights | None, device: str
) -> golden.ProjectionWeights | None:
    """The projections of a layer on a device."""
    if weights is None or device == "cpu":
        return weights
    mover = Mover(device)
    roles = (field.name for field in dataclasses.fields(weights))
    return golden.ProjectionWeights(**{role: mover.move(getattr(weights, role)) for role in roles})


_COPIES: WeakKeyDictionary[nn.Module, dict[str, nn.Module]] = WeakKeyDictionary()
_IN_DTYPE: WeakKeyDictionary[nn.Module, dict[torch.dtype, nn.Module]] = WeakKeyDictionary()


def module_on(forward: Any, device: str, *, fresh: bool) -> Any:
    """A module on a device; anything else, and one that is there already, as it is.

    One that is built for each question is moved; the user's own is left where it is, and a copy of
    it is moved once, unless it refuses to be copied.
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
    """The user's own module as it can be judged in a dtype; anything else as it is.

    A module of another dtype that answers as it is converts by itself; with ``rounds`` its
    parameters keep their dtype and are rounded to the judged one, as the golden's weights are. Else
    a copy is put in the dtype, as a user would, once. ``answers`` says whether a module answers in
    this dtype. Where neither does, the user's own is given back: what it raises is told.
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
    if converts:
        return _rounded(copied, dtype)
    copied = put_in_dtype(copied, dtype)
    return copied if answers(copied) else own


def _rounded(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module, each parameter at the nearest numbers that a dtype has."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data.copy_(parameter.data.to(dtype))
    return module


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return module


def _elsewhere(module: nn.Module, device: torch.device) -> bool:
    """Whether some parameter or buffer lies on another device; what has no values lies nowhere."""
    tensors: Iterable[Tensor] = (*module.parameters(), *module.buffers())
    return any(tensor.device != device and not tensor.is_meta for tensor in tensors)
