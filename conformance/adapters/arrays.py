"""Passes tensors to functions of NumPy arrays."""

from __future__ import annotations

from typing import Any

import torch


def arrays_of(value: Any) -> tuple[str, ...]:
    """The array libraries a function may expect: NumPy first if its code uses only NumPy."""
    code, names = getattr(value, "__code__", None), getattr(value, "__globals__", {})
    used = {getattr(names.get(name), "__name__", "") for name in getattr(code, "co_names", ())}
    if "numpy" in used and "torch" not in used:
        return "numpy", "torch"
    return ("torch",)


def on_arrays(function: Any, *inputs: Any, **options: Any) -> Any:
    """Call a function of NumPy arrays with tensors; convert the result to tensors."""
    named = {name: _as_array(value) for name, value in options.items()}
    return _as_tensors(function(*map(_as_array, inputs), **named))


def _as_array(value: Any) -> Any:
    if isinstance(value, dict):  # weights by name
        return {name: _as_array(part) for name, part in value.items()}
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value


def _as_tensors(value: Any) -> Any:
    if type(value).__module__ == "numpy":
        return torch.as_tensor(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_as_tensors, value))
    if isinstance(value, dict):
        return {name: _as_tensors(part) for name, part in value.items()}
    return value
