"""Torch's devices by name: which are here, and how their streams are waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import torch

CPU: Final = "cpu"


def canonical(name: str) -> str:
    """A device's name as its tensors say it: ``cuda`` is ``cuda:0``, ``cpu:0`` is ``cpu``.

    Of a device that is not here the name as it is given.
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


def here() -> str:
    """What torch sees besides the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return "torch sees no device but the CPU here"
    count = torch.accelerator.device_count()
    named = f"{found.type}:0" if count == 1 else f"{found.type}:0 to {found.type}:{count - 1}"
    return f"torch sees the CPU and {named} here"


def kind_of(name: str) -> str:
    """The type of a device: ``cuda`` of ``cuda:1``."""
    return torch.device(name).type


def judged_on(declared: tuple[str, ...]) -> str:
    """The device that a declaration is judged on: its first."""
    return declared[0]


def module_of(name: str) -> ModuleType | Any:
    """Torch's module for a device, such as ``torch.cuda``; None where it has none."""
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
    """Put torch's random numbers back afterwards, those of the CPU and of one device."""
    index, devices = torch.device(name).index, []
    if kind_of(name) != CPU and offers(name, "get_rng_state", "set_rng_state"):
        devices = [0 if index is None else index]
    kind = kind_of(name) if devices else "cuda"  # of no device at all the kind does not matter
    with torch.random.fork_rng(devices=devices, device_type=kind):
        yield


def synchronise(name: str) -> None:
    """Wait for everything that was started on a device; raises what it has failed with."""
    if kind_of(name) != CPU and offers(name, "synchronize"):
        module_of(name).synchronize(name)
