"""Document C: cross-attention with valid lengths, masked by a finite fill."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

import conformance
from conformance import STANDARD, ExpectedFailure, Geometry, ProjectionWeights

from ._load import like, load_linear, merged_output, training

FILL: Final = -1e6


class ValidLengthAttention(nn.Module):
    """Attention of ``queries [B, Lq, query_size]`` to ``keys [B, Lk, key_size]`` and their values.

    ``values`` are ``[B, Lk, value_size]``, the output is ``[B, Lq, num_hiddens]``. ``valid_lens``
    is None or an integer tensor ``[B]`` or ``[B, Lq]``: keys at or past the length get the logit
    -1e6. So a length of 0 averages all values, and logits below about -1e6 let ignored keys in. In
    training mode the weights are dropped out. An empty batch raises RuntimeError.
    """

    def __init__(
        self,
        key_size: int,
        query_size: int,
        value_size: int,
        num_hiddens: int,
        num_heads: int,
        dropout: float,
        bias: bool = False,  # noqa: FBT001, FBT002 (the document's signature)
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.Linear(query_size, num_hiddens, bias=bias)
        self.W_k = nn.Linear(key_size, num_hiddens, bias=bias)
        self.W_v = nn.Linear(value_size, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        """Attend from every query to the valid keys of its item."""
        query = self._fold(self.W_q(queries))
        key = self._fold(self.W_k(keys))
        value = self._fold(self.W_v(values))
        if valid_lens is not None:
            # Folding puts an item's heads next to each other: its length repeats in place.
            valid_lens = valid_lens.repeat_interleave(self.num_heads, dim=0)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = self.dropout(masked_softmax(scores, valid_lens))
        output: Tensor = self.W_o(self._unfold(weights @ value))
        return output

    def _fold(self, tokens: Tensor) -> Tensor:
        """``[B, L, H*D]`` to ``[B*H, L, D]``, item 0's heads first."""
        batch, length, _ = tokens.shape
        heads = tokens.reshape(batch, length, self.num_heads, -1).permute(0, 2, 1, 3)
        return heads.reshape(batch * self.num_heads, length, -1)

    def _unfold(self, heads: Tensor) -> Tensor:
        """``[B*H, L, D]`` to ``[B, L, H*D]``."""
        _, length, size = heads.shape
        items = heads.reshape(-1, self.num_heads, length, size).permute(0, 2, 1, 3)
        return items.reshape(items.shape[0], length, -1)


def masked_softmax(scores: Tensor, valid_lens: Tensor | None) -> Tensor:
    """Softmax of ``scores [N, Lq, Lk]`` over the keys before ``valid_lens [N]`` or ``[N, Lq]``."""
    if valid_lens is None:
        return torch.softmax(scores, dim=-1)
    limits = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
    positions = torch.arange(scores.shape[-1], device=scores.device)
    return torch.softmax(scores.masked_fill(positions >= limits[..., None], FILL), dim=-1)


class _Declared(nn.Module):
    """The layer under the harness's keywords."""

    def __init__(self, attention: ValidLengthAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: Tensor | None = None,
        dropout: float | None = None,
    ) -> Tensor:
        attention = self.attention
        if dropout is None:
            output: Tensor = attention(query, key, value, lengths)
            return output
        configured, attention.dropout.p = attention.dropout.p, dropout
        try:
            with training(attention):
                output = attention(query, key, value, lengths)
        finally:
            attention.dropout.p = configured
        return output


@conformance.layer(
    masks=["lengths"],
    mask_shapes=["B", "BQ"],
    empty_rows="mean-of-all",
    features=["dropout"],
    geometry=merged_output,
    semantics=STANDARD.replace(
        query_bias=False, key_bias=False, value_bias=False, output_bias=False
    ),
    expected_failures=[
        ExpectedFailure(
            clause="mask.single-key",
            reason=(
                "ignored keys get the logit -1e6 and not minus infinity, so they win over a valid "
                "key whose logit lies below it"
            ),
        )
    ],
)
def valid_length_attention(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """Document C's layer with the weights of a problem, at the document's dropout."""
    biases = (weights.q_bias, weights.k_bias, weights.v_bias, weights.o_bias)
    attention = ValidLengthAttention(
        key_size=geometry.key_size,
        query_size=geometry.query_size,
        value_size=geometry.value_size,
        num_hiddens=geometry.num_heads * geometry.head_size,
        num_heads=geometry.num_heads,
        dropout=0.5,
        bias=any(bias is not None for bias in biases),
    )
    like(attention, weights.q)
    load_linear(attention.W_q, weights.q, weights.q_bias)
    load_linear(attention.W_k, weights.k, weights.k_bias)
    load_linear(attention.W_v, weights.v, weights.v_bias)
    load_linear(attention.W_o, weights.o, weights.o_bias)
    return _Declared(attention)
