"""Ways the same values can lie in memory. Each returns a fresh tensor of its argument's values.

Memory between and around the elements holds junk: finite junk shows a kernel that reads it as an
element, NaN also a kernel that multiplies it by zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

MemoryLayout = Callable[[Tensor], Tensor]
JUNK = 1e4
LARGEST_CODE = 0x7F
# Elements on each side of a tensor in a buffer: the largest overread of a kernel's tile.
MARGIN = 128


def contiguous(tensor: Tensor) -> Tensor:
    """Row-major, nothing else in the storage."""
    return tensor.clone(memory_format=torch.contiguous_format)


def channels_first(tensor: Tensor) -> Tensor:
    """Tokens and channels swapped in memory, as after a transpose of the last two axes."""
    return contiguous(tensor.transpose(-1, -2)).transpose(-1, -2)


def tokens_first(tensor: Tensor) -> Tensor:
    """The token axis outside heads or batch, as ``[B, L, H, D]`` seen as ``[B, H, L, D]``."""
    if tensor.dim() < len("BLE"):
        return channels_first(tensor)
    return contiguous(tensor.transpose(-2, -3)).transpose(-2, -3)


def _junk(shape: tuple[int, ...], like: Tensor, junk: float) -> Tensor:
    """A buffer filled with junk: True for masks, a number out of range for integers.

    Bytes are the largest code in integers, and no number in formats of eight bits.
    """
    filler = junk if like.is_floating_point() else JUNK
    filler = LARGEST_CODE if like.dtype == torch.uint8 else filler
    return torch.full(shape, filler, dtype=like.dtype)


def _placed(view: Tensor, tensor: Tensor) -> Tensor:
    return view.copy_(tensor)


def every_other(tensor: Tensor, junk: float = JUNK) -> Tensor:
    """Every second channel of a storage twice as wide, with junk between."""
    wide = _junk((*tensor.shape[:-1], 2 * tensor.shape[-1]), tensor, junk)
    return _placed(wide[..., ::2], tensor)


def fused(tensor: Tensor, junk: float = JUNK) -> Tensor:
    """The middle third of a fused projection: an offset and wide rows, junk on both sides."""
    width = tensor.shape[-1]
    wide = _junk((*tensor.shape[:-1], 3 * width), tensor, junk)
    return _placed(wide[..., width : 2 * width], tensor)


def sliced_tokens(tensor: Tensor, junk: float = JUNK) -> Tensor:
    """A window of tokens in a longer buffer, such as a cache with room to spare."""
    length = tensor.shape[-2]
    wide = _junk((*tensor.shape[:-2], length + 3, tensor.shape[-1]), tensor, junk)
    return _placed(wide[..., 1 : 1 + length, :], tensor)


def odd_rows(tensor: Tensor, junk: float = JUNK) -> Tensor:
    """Rows one element further apart than they are wide: only the first is aligned."""
    width = tensor.shape[-1]
    wide = _junk((*tensor.shape[:-1], width + 1), tensor, junk)
    return _placed(wide[..., :width], tensor)


def between_canaries(tensor: Tensor) -> Tensor:
    """Row-major in the middle of a buffer of NaN."""
    count = tensor.numel()
    buffer = _junk((count + 2 * MARGIN,), tensor, math.nan)
    return _placed(buffer[MARGIN : MARGIN + count].view(tensor.shape), tensor)


def _among_nan(layout: Callable[[Tensor, float], Tensor]) -> MemoryLayout:
    return lambda tensor: layout(tensor, math.nan)


def expanded(tensor: Tensor) -> Tensor:
    """The first batch item with stride 0 along the batch: items must be equal."""
    return tensor[:1].clone().expand(tensor.shape)


def expanded_heads(tensor: Tensor) -> Tensor:
    """The first head with stride 0 along the heads: heads must be equal."""
    return tensor[:, :1].clone().expand(tensor.shape)


MEMORY_LAYOUTS: Final[dict[str, MemoryLayout]] = {
    "contiguous": contiguous,
    "channels-first": channels_first,
    "tokens-first": tokens_first,
    "every-other": every_other,
    "fused": fused,
    "sliced-tokens": sliced_tokens,
    "odd-rows": odd_rows,
    "between-canaries": between_canaries,
    "nan-beside-channels": _among_nan(fused),
    "nan-beside-tokens": _among_nan(sliced_tokens),
    "expanded": expanded,
    "expanded-heads": expanded_heads,
}
STRIDED: Final = (
    "channels-first",
    "tokens-first",
    "every-other",
    "fused",
    "sliced-tokens",
    "odd-rows",
)
# Query, key and value in different layouts: the strides of one say nothing about the others.
MIXED: Final = ("fused", "channels-first", "sliced-tokens")
CANARIES: Final = (
    "between-canaries",
    "nan-beside-tokens",
    "nan-beside-channels",
)


def arrange_mask(mask: Tensor, layout: str) -> Tensor:
    """A mask of any number of axes in a layout; "expanded" stores repeated entries once."""
    if layout == "expanded":
        return _expanded_once(mask)
    if mask.dim() == 0:
        return mask.clone()
    if mask.dim() == 1:
        return between_canaries(mask) if layout in CANARIES else every_other(mask)
    return MEMORY_LAYOUTS[layout](mask)


def _expanded_once(mask: Tensor) -> Tensor:
    """Stride 0 along the first axis along which the mask repeats itself."""
    for axis, size in enumerate(mask.shape):
        once = mask.narrow(axis, 0, min(size, 1))
        if size > 1 and bool((mask == once).all()):
            return once.clone().expand(mask.shape)
    return mask.clone()
