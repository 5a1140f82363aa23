"""Undoing what the golden does with heads: repeating, splitting and merging them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from conformance._golden import golden


def sum_groups(heads: Tensor, num_kv_heads: int, semantics: golden.Semantics) -> Tensor:
    """Add up what belongs to one key/value head: ``[B, H, L, D]`` to ``[B, Hkv, L, D]``."""
    owner = _owners(heads.shape[1], num_kv_heads, semantics)
    total = heads.new_zeros(heads.shape[0], num_kv_heads, *heads.shape[2:])
    return total.index_add_(1, owner, heads)


def _owners(num_heads: int, num_kv_heads: int, semantics: golden.Semantics) -> Tensor:
    """The key/value head that each query head reads, int64 ``[H]``."""
    indices = torch.arange(num_kv_heads).view(1, num_kv_heads, 1, 1)
    return golden.repeat_heads(indices, num_heads, semantics).flatten()


def unmerge_heads(merged: Tensor, shape: torch.Size, semantics: golden.Semantics) -> Tensor:
    """The inverse of ``golden.merge_heads`` for heads of ``shape`` ``[B, H, L, Dv]``."""
    return _invert(merged, shape, lambda heads: golden.merge_heads(heads, semantics))


def unsplit_heads(heads: Tensor, semantics: golden.Semantics) -> Tensor:
    """The inverse of ``golden.split_heads``: ``[B, H, L, D]`` to ``[B, L, H*D]``."""
    batch, num_heads, length, size = heads.shape
    shape = torch.Size((batch, length, num_heads * size))
    return _invert(heads, shape, lambda tokens: golden.split_heads(tokens, num_heads, semantics))


def _invert(moved: Tensor, shape: torch.Size, move: Callable[[Tensor], Tensor]) -> Tensor:
    """Undo a function that only moves elements of a tensor of ``shape``."""
    source = move(torch.arange(shape.numel()).reshape(shape)).flatten()
    original = torch.empty_like(moved.flatten())
    original[source] = moved.flatten()
    return original.reshape(shape)


def head_rows(matrix: Tensor, num_heads: int, semantics: golden.Semantics) -> Tensor:
    """The rows of a projection that make each head: ``[H*D, in]`` to ``[H, D, in]``."""
    return matrix[_channels(matrix.shape[0], num_heads, semantics)]


def from_head_rows(heads: Tensor, semantics: golden.Semantics) -> Tensor:
    """The inverse of :func:`head_rows`: ``[H, D, in]`` to ``[H*D, in]``."""
    num_heads, size, width = heads.shape
    matrix = heads.new_empty(num_heads * size, width)
    matrix[_channels(num_heads * size, num_heads, semantics)] = heads
    return matrix


def _channels(width: int, num_heads: int, semantics: golden.Semantics) -> Tensor:
    """Which channel of a projection is which channel of which head: int64 ``[H, D]``."""
    channels = torch.arange(width).view(1, 1, -1)
    return golden.split_heads(channels, num_heads, semantics)[0, :, 0]
