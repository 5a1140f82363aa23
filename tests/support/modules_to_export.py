"""Modules that tests export; imported by path as a user's file is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import conformance


class Itself(nn.Module):
    """Self-attention with a mask that keeps where it is not zero."""

    def __init__(self, width: int = 12, num_heads: int = 3, scale: float = 0.5) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.num_heads, self.scale = num_heads, scale

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Projected query, key and value."""
        batch, length, width = x.shape
        cut = (batch, length, 3, self.num_heads, width // self.num_heads)
        return self.qkv(x).reshape(cut).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens ``[B, L, 12]``, mask ``[B, 1, L, L]``."""
        query, key, value = self.heads(x)
        scores = query @ key.transpose(-1, -2) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Baked(Itself):
    """It reads its sizes as numbers, which tracing takes for constants."""

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Projected query, key and value."""
        batch, length, width = (int(size) for size in x.shape)
        cut = (batch, length, 3, self.num_heads, width // self.num_heads)
        return self.qkv(x).reshape(cut).permute(2, 0, 3, 1, 4).unbind(0)


class Branching(Itself):
    """What it computes depends on its data."""

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[B, L, 12]``."""
        return super().forward(x * 2 if x.sum() > 0 else x)


class Padded(nn.Module):
    """Attention between two inputs with lengths that are required arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(8, 8) for _ in range(4))
        self.num_heads = 2

    def forward(self, query: Tensor, key: Tensor, value: Tensor, valid_lens: Tensor) -> Tensor:
        """Tokens ``[B, L, 8]``, lengths ``[B]``."""
        tokens = (self.W_q(query), self.W_k(key), self.W_v(value))
        q, k, v = (token.unflatten(-1, (2, 4)).transpose(1, 2) for token in tokens)
        scores = q @ k.transpose(-1, -2) / 2
        if valid_lens is not None:
            kept = torch.arange(scores.shape[-1]) < valid_lens[:, None, None, None]
            scores = scores.masked_fill(~kept, float("-inf"))
        return self.W_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Needy(nn.Module):
    """A constructor that nobody can guess."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        if not isinstance(secret, str):
            raise TypeError(secret)
        self.secret = secret


def multihead() -> nn.Module:
    """Torch's layer, with new weights in each call."""
    return nn.MultiheadAttention(8, 2, batch_first=True)


def raising() -> nn.Module:
    """No module after all."""
    msg = "not today"
    raise ValueError(msg)


def with_arguments(width: int) -> nn.Module:
    """It cannot be called without arguments."""
    return nn.Linear(width, width)


instance = Itself()
number = 3
candidate = conformance.core()(nn.functional.scaled_dot_product_attention)
