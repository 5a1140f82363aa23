"""Reads the numbers of a returned tensor by means that its class cannot override."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

# A tensor of one of these classes runs none of a candidate's code when it is looked at.
PLAIN = (Tensor, nn.Parameter)
_BASE: Any = torch._C.TensorBase  # noqa: SLF001 (immutable, unlike torch.Tensor: nobody replaces its methods)


def is_tensor(value: Any) -> bool:
    """Whether something is a tensor by its type; ``isinstance`` believes a false ``__class__``."""
    return issubclass(type(value), Tensor)


def plainly(value: Tensor) -> Tensor | None:
    """The tensor itself, or for a subclass a plain one in the same memory.

    None for a wrapper, which has no numbers in memory of its own and would make them up when asked.
    """
    if type(value) in PLAIN:
        return value
    with _unheard():
        if _BASE.device.__get__(value).type != "cpu":  # its numbers are fetched from there
            return value
        return _BASE.as_subclass(value, Tensor) if _in_memory(value) else None


def _in_memory(value: Tensor) -> bool:
    """Whether a tensor's numbers lie in memory of its own, one beside the other."""
    if _BASE.layout.__get__(value) != torch.strided:
        return False
    return bool(_BASE.numel(value) == 0 or _BASE.data_ptr(value) != 0)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Call torch without asking ``__torch_function__`` and ``__torch_dispatch__`` of a subclass."""
    python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)  # noqa: SLF001 (no public way)
    python = python.add(torch._C.DispatchKey.PythonTLSSnapshot)  # noqa: SLF001
    with torch._C._ExcludeDispatchKeyGuard(python), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        yield
