"""Tensors as bytes that any language reads: little-endian, row-major, nothing between."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

# What the elements of each dtype are in the file.
STORED_AS: Final = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "uint16",
    "int64": "int64",
    "bool": "uint8",
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor's dtype, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def stored(tensor: Tensor) -> Stored:
    """The bytes of a tensor; of bfloat16 its 16 bits, of bool a byte each, 0 or 1."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.int16)
    array = plain.numpy()
    if sys.byteorder != "little":
        array = array.byteswap()
    return Stored(dtype=dtype, shape=tuple(tensor.shape), data=array.tobytes())
