"""Document C': sinusoidal position encoding, on its own and under document A's attention."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

import conformance

from .token_attention import TokenAttention

MAX_LENGTH: Final = 1000
TOKEN_SIZE: Final = 8
HEAD_SIZE: Final = 4
NUM_HEADS: Final = 2


class SinusoidalPositions(nn.Module):
    """Adds ``P`` to its input ``[B, L, num_hiddens]``, then drops out.

    ``P[i, 2j] = sin(i / 10000^(2j/d))`` and ``P[i, 2j+1] = cos(i / 10000^(2j/d))``, a float32 table
    ``[1, max_len, num_hiddens]``.

    Raises ValueError for an odd width, or for an input longer than ``max_len``.
    """

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = MAX_LENGTH) -> None:
        super().__init__()
        if num_hiddens % 2:
            msg = f"num_hiddens={num_hiddens} is odd: sines and cosines come in pairs"
            raise ValueError(msg)
        self.dropout = nn.Dropout(dropout)
        # As in the document: a plain attribute, in no state dict and not moved by `.to(...)`.
        self.P = torch.zeros(1, max_len, num_hiddens)
        exponents = torch.arange(0, num_hiddens, 2, dtype=torch.float32) / max(num_hiddens, 1)
        positions = torch.arange(max_len, dtype=torch.float32)[:, None]
        angles = positions / torch.pow(10000.0, exponents)
        self.P[:, :, 0::2] = torch.sin(angles)
        self.P[:, :, 1::2] = torch.cos(angles)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` plus the encoding of its positions."""
        length, longest = x.shape[1], self.P.shape[1]
        if length > longest:
            msg = f"the input has {length} positions, more than max_len={longest}"
            raise ValueError(msg)
        encoded: Tensor = self.dropout(x + self.P[:, :length].to(x.device))
        return encoded


@conformance.positions(max_length=MAX_LENGTH)
def sinusoidal_positions(x: Tensor) -> Tensor:
    """Document C's encoding for the width of an input, in eval mode."""
    encoded: Tensor = SinusoidalPositions(x.shape[-1], dropout=0.5).eval()(x)
    return encoded


def _positioned_attention() -> nn.Module:
    """Attention over ``x + P``, with weights of its own that nobody is told."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        attention = TokenAttention(TOKEN_SIZE, HEAD_SIZE, HEAD_SIZE, NUM_HEADS)
    return nn.Sequential(SinusoidalPositions(TOKEN_SIZE, dropout=0.5), attention).eval()


# The negative control of the equivariance clauses; its weights are told to nobody.
positioned_attention = conformance.fixed_layer(
    _positioned_attention(),
    None,
    num_heads=NUM_HEADS,
    name="positioned_attention",
    inputs="self",
    position="sinusoidal",
    max_length=MAX_LENGTH,
    geometry={
        "head_size": HEAD_SIZE,
        "value_head_size": HEAD_SIZE,
        "query_size": TOKEN_SIZE,
        "key_size": TOKEN_SIZE,
        "value_size": TOKEN_SIZE,
        "output_size": TOKEN_SIZE,
    },
)
