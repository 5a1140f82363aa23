"""Roundings: each number of a result converted to a coarser format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from .operator import Operator

Rounding = Callable[[Tensor], Tensor]
# The dtypes of tensors, and the dtypes of caches and products alone.
FORMATS: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, name)
    for name in "float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2".split()
}
# TensorFloat-32 keeps 10 of float32's 23 explicit bits: these are cut off.
SHORT_BITS: Final = 13


def format_rounding(name: str) -> Rounding:
    """Round to a format and back; finite numbers that overflow become the largest finite number."""
    working = FORMATS[name]
    limits = torch.finfo(working)

    def rounded(tensor: Tensor) -> Tensor:
        clamped = tensor.clamp(limits.min, limits.max)
        if bool(torch.isinf(tensor).any()):  # infinities stay, like NaN
            clamped = torch.where(torch.isinf(tensor), tensor, clamped)
        return clamped.to(working).double()

    return rounded


def round_to_tf32(tensor: Tensor) -> Tensor:
    """Round to nearest, ties away from zero, as a tensor core's operands are."""
    return _cut(tensor.float().contiguous().view(torch.int32) + (1 << (SHORT_BITS - 1)))


def cut_to_tf32(tensor: Tensor) -> Tensor:
    """Cut off the last bits, as TensorFloat-32 without rounding."""
    return _cut(tensor.float().contiguous().view(torch.int32))


def _cut(bits: Tensor) -> Tensor:
    return (bits & ~((1 << SHORT_BITS) - 1)).view(torch.float32).double()


def integer_rounding(steps: int, axes: tuple[int, ...]) -> Rounding:
    """Round to multiples of the largest magnitude along the axes divided by ``steps``."""

    def rounded(tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor
        step = tensor.abs().amax(dim=axes, keepdim=True) / steps
        return torch.where(step == 0.0, tensor, (tensor / step).round() * step)

    return rounded


def step_rounding(step: float) -> Rounding:
    """Round to multiples of a number."""
    return lambda tensor: (tensor / step).round() * step


ROUNDINGS: Final[dict[str, Rounding]] = {
    **{name: format_rounding(name) for name in FORMATS if name != "float64"},
    "tf32": round_to_tf32,
}


def roundings_below() -> Iterator[Operator]:
    """Yield roundings to formats of sixteen bits."""
    for name in ("bfloat16", "float16"):
        yield Operator(f"rounded to {name}", format_rounding(name))
