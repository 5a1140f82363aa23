"""Copies of a user's module, and modules in the dtype that is judged."""

from __future__ import annotations

import copy
from typing import Final

import torch
from torch import nn

from ..errors import DeclarationError

# The methods that users call, and libraries override. ``Module.to(dtype)`` would also make complex
# buffers (rotary positions kept as complex numbers) real, and lose their imaginary part.
_METHODS: Final = {
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
}


def duplicate(module: nn.Module) -> nn.Module:
    """A deep copy; raises DeclarationError where the module cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # a module's own __deepcopy__ may raise anything
        msg = (
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}), and an "
            "instance is never changed: pass its class and construct="
        )
        raise DeclarationError(msg) from error


def put_in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself, its floating-point parameters and buffers in a dtype.

    Complex and integer tensors stay as they are.
    """
    cast: nn.Module = getattr(module, _METHODS[dtype])()
    return cast


def is_in_dtype(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether every floating-point parameter and buffer has a dtype."""
    tensors = (*module.parameters(), *module.buffers())
    return all(tensor.dtype == dtype for tensor in tensors if tensor.is_floating_point())
