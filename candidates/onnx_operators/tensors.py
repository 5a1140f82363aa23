"""Between the harness's tensors and the arrays that graphs take."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .graph import Array


def array_of(tensor: Tensor) -> Array:
    """The same numbers as a contiguous array."""
    return np.ascontiguousarray(tensor.detach().numpy())


def tensor_of(array: Array) -> Tensor:
    """The same numbers as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(array))


def packed(heads: Tensor) -> Tensor:
    """``[B, H, L, D]`` as the operators' three axes ``[B, L, H*D]``, head 0's channels first."""
    return heads.transpose(1, 2).flatten(2)


def unpacked(tokens: Tensor, num_heads: int) -> Tensor:
    """``[B, L, H*D]`` as ``[B, H, L, D]``."""
    heads: Tensor = tokens.unflatten(2, (num_heads, tokens.shape[2] // num_heads))
    return heads.transpose(1, 2)


def causal_keep(query_length: int, key_length: int) -> Tensor:
    """Which key each query sees when the last query sees the last key: bool ``[Lq, Lk]``."""
    everything = torch.ones(query_length, key_length, dtype=torch.bool)
    return everything.tril(key_length - query_length)
