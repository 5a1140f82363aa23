"""Steps that the implementations share: the wide dtype, logits, block boundaries."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .inputs import Heads

EVERY = slice(None)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a conforming implementation adds up in: float32, float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def wide(tokens: Tensor) -> Tensor:
    """The same numbers in the accumulator's dtype."""
    return tokens.to(wide_dtype(tokens.dtype))


def stored(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to a dtype as if stored, and widened again."""
    return numbers.to(dtype).to(numbers.dtype)


def transposed(tokens: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return tokens.transpose(-1, -2)


def finish(scores: Tensor, heads: Heads, keys: slice = EVERY) -> Tensor:
    """Cap scaled scores, add bias and mask; in the dtype of the scores."""
    if heads.softcap is not None:
        scores = heads.softcap * torch.tanh(scores / heads.softcap)
    added = heads.additive(scores.dtype)
    return scores if added is None else scores + added[..., keys]


def logits(heads: Heads, keys: slice = EVERY) -> Tensor:
    """Logits for some of the keys in wide arithmetic, the scale applied to the product."""
    products = wide(heads.query) @ transposed(wide(heads.key[..., keys, :]))
    return finish(products * heads.scale, heads, keys)


def largest(scores: Tensor) -> Tensor:
    """The maximum of each row, 0 where there is no key."""
    top = scores.amax(dim=-1, keepdim=True)
    return torch.where(torch.isneginf(top), 0.0, top)


def divided(sums: Tensor, total: Tensor) -> Tensor:
    """A quotient, 0 where a part of the keys had none that counts."""
    return sums / torch.where(total > 0, total, 1.0)


def blocks(length: int, width: int) -> Iterator[slice]:
    """Slices of keys."""
    return (slice(start, min(start + width, length)) for start in range(0, length, width))
