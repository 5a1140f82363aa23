"""Builds the modules of this folder from the geometry and weights of one problem."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from conformance import Geometry

_CPU = Path("/proc/cpuinfo")
# On x86 processors with AMX, oneDNN lets NaN of a row spread to other rows of a bfloat16 product
# (uxlfoundation/oneDNN#5717): what answers NaN where a query has no key keeps no promise there.
NAN_SPREADS = _CPU.is_file() and "amx_bf16" in _CPU.read_text(encoding="utf-8")
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def like(module: ModuleT, weights: Tensor) -> ModuleT:
    """The module in the dtype and on the device of the weights it is about to get."""
    return module.to(device=weights.device, dtype=weights.dtype)


def load_linear(linear: nn.Linear, matrix: Tensor | None, bias: Tensor | None) -> None:
    """Give a linear map its ``(out, in)`` matrix and its bias; a bias of None becomes zeros.

    Raises ValueError when there is no matrix, or a bias for a linear map that has none.
    """
    if matrix is None:
        msg = "this layer has an output projection: it needs weights.o"
        raise ValueError(msg)
    with torch.no_grad():
        linear.weight.copy_(matrix)
    load_bias(linear.bias, bias)


def load_bias(parameter: Tensor | None, bias: Tensor | None) -> None:
    """Give a bias parameter its values; None becomes zeros.

    Raises ValueError for values when there is no parameter.
    """
    if parameter is None:
        if bias is not None:
            msg = "a bias is given for a projection that was built without one"
            raise ValueError(msg)
        return
    with torch.no_grad():
        if bias is None:
            parameter.zero_()
        else:
            parameter.copy_(bias)


@contextmanager
def training(module: nn.Module) -> Iterator[None]:
    """Put a module in training mode for the length of a block."""
    before = module.training
    module.train()
    try:
        yield
    finally:
        module.train(before)


def heads_of_one_size(geometry: Geometry) -> Geometry:
    """Value heads as wide as the others, and as many key/value heads as heads."""
    return geometry.replace(num_kv_heads=geometry.num_heads, value_head_size=geometry.head_size)


def merged_output(geometry: Geometry) -> Geometry:
    """One head size, and an output as wide as the heads side by side; input widths stay free."""
    geometry = heads_of_one_size(geometry)
    return geometry.replace(output_size=geometry.num_heads * geometry.head_size)


def one_width(geometry: Geometry) -> Geometry:
    """One width everywhere, the number of heads times the head size."""
    geometry = merged_output(geometry)
    width = geometry.output_size
    return geometry.replace(query_size=width, key_size=width, value_size=width)
