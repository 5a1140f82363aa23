"""Cut widths of tokens into heads, merge heads, and project tokens."""

from __future__ import annotations

from torch import Tensor

from .checks import check_divides, check_size, check_tensor
from .semantics import STANDARD, Semantics


def project(tokens: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """``x W^T + b`` in float64 for ``x [..., in]`` and ``W [out, in]``."""
    check_tensor(matrix, "matrix", "out in")
    check_size(matrix, "matrix", 1, tokens.shape[-1], "the width of tokens")
    if bias is not None:
        check_tensor(bias, "bias", "out")
        check_size(bias, "bias", 0, matrix.shape[0], "the rows of matrix")
    projected = tokens.double() @ matrix.double().T
    return projected if bias is None else projected + bias.double()


def split_heads(tokens: Tensor, num_heads: int, semantics: Semantics = STANDARD) -> Tensor:
    """Cut ``[B, L, H*D]`` into ``[B, H, L, D]``."""
    check_tensor(tokens, "tokens", "B L H*D")
    check_divides(num_heads, "num_heads", tokens.shape[-1], "the width of tokens")
    batch, length, width = tokens.shape
    head_size = width // num_heads
    if semantics.head_split == "reinterpret":
        return tokens.reshape(batch, num_heads, length, head_size)
    if semantics.head_split == "interleaved":
        return tokens.reshape(batch, length, head_size, num_heads).permute(0, 3, 1, 2)
    return tokens.reshape(batch, length, num_heads, head_size).transpose(1, 2)


def merge_heads(heads: Tensor, semantics: Semantics = STANDARD) -> Tensor:
    """Put ``[B, H, L, Dv]`` side by side: ``[B, L, H*Dv]`` (``[B, H*L, Dv]`` for "tokens")."""
    check_tensor(heads, "heads", "B H L Dv")
    batch, num_heads, length, head_size = heads.shape
    if semantics.head_merge == "tokens":
        return heads.reshape(batch, num_heads * length, head_size)
    if semantics.head_merge == "reinterpret":
        return heads.reshape(batch, length, num_heads * head_size)
    if semantics.head_merge == "interleaved":
        return heads.permute(0, 2, 3, 1).reshape(batch, length, num_heads * head_size)
    return heads.transpose(1, 2).reshape(batch, length, num_heads * head_size)
