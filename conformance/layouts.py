"""Ways the same values can lie in memory. Each returns a fresh tensor of the values it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]
JUNK = 1e4


def contiguous(tensor: Tensor) -> Tensor:
    """Row-major, nothing else in the storage."""
    return tensor.clone(memory_format=torch.contiguous_format)


def channels_first(tensor: Tensor) -> Tensor:
    """Tokens and channels swapped in memory, as after a transpose of the last two axes."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def tokens_first(tensor: Tensor) -> Tensor:
    """The token axis outside heads or batch, as ``[B, L, H, D]`` seen as ``[B, H, L, D]``."""
    if tensor.dim() < len("BLE"):
        return channels_first(tensor)
    return tensor.transpose(-2, -3).contiguous().transpose(-2, -3)


def every_other(tensor: Tensor) -> Tensor:
    """Every second channel of a storage twice as wide, with junk between."""
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), JUNK, dtype=tensor.dtype)
    view = wide[..., ::2]
    view.copy_(tensor)
    return view


def fused(tensor: Tensor) -> Tensor:
    """The middle third of a fused projection: an offset and wide rows, junk on both sides."""
    width = tensor.shape[-1]
    wide = torch.full((*tensor.shape[:-1], 3 * width), JUNK, dtype=tensor.dtype)
    view = wide[..., width : 2 * width]
    view.copy_(tensor)
    return view


def sliced_tokens(tensor: Tensor) -> Tensor:
    """A window of tokens in a longer buffer, such as a cache that is not full."""
    length = tensor.shape[-2]
    wide = torch.full((*tensor.shape[:-2], length + 3, tensor.shape[-1]), JUNK, dtype=tensor.dtype)
    view = wide[..., 1 : 1 + length, :]
    view.copy_(tensor)
    return view


def expanded(tensor: Tensor) -> Tensor:
    """The first batch item with stride 0 along the batch: values must be equal along it."""
    return tensor[:1].clone().expand(tensor.shape)


def expanded_heads(tensor: Tensor) -> Tensor:
    """The first head with stride 0 along the heads: values must be equal along them."""
    return tensor[:, :1].clone().expand(tensor.shape)


LAYOUTS: Final[dict[str, Layout]] = {
    "contiguous": contiguous,
    "channels-first": channels_first,
    "tokens-first": tokens_first,
    "every-other": every_other,
    "fused": fused,
    "sliced-tokens": sliced_tokens,
    "expanded": expanded,
    "expanded-heads": expanded_heads,
}
STRIDED: Final = ("channels-first", "tokens-first", "every-other", "fused", "sliced-tokens")
