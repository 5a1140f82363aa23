"""Document D: cross-attention whose hidden size is that of one head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import conformance
from conformance import Geometry, ProjectionWeights

from ._load import like, load_linear, merged_output


class WideHeadAttention(nn.Module):
    """Attention of ``query [B, Lq, query_size]`` to ``key [B, Lk, key_size]`` and its values.

    ``value`` is ``[B, Lk, value_size]``, the output ``[B, Lq, hidden_size * num_heads]``: here
    ``hidden_size`` is the size of one head. No mask. An empty batch raises RuntimeError.
    """

    def __init__(
        self, query_size: int, key_size: int, value_size: int, hidden_size: int, num_heads: int
    ) -> None:
        super().__init__()
        width = hidden_size * num_heads
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.linear_q = nn.Linear(query_size, width)
        self.linear_k = nn.Linear(key_size, width)
        self.linear_v = nn.Linear(value_size, width)
        self.linear_o = nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend from every query to every key of its item."""
        folded_query = self._fold(self.linear_q(query))
        folded_key = self._fold(self.linear_k(key))
        folded_value = self._fold(self.linear_v(value))
        scores = torch.bmm(folded_query, folded_key.transpose(1, 2)) / math.sqrt(self.hidden_size)
        heads = torch.bmm(torch.softmax(scores, dim=-1), folded_value)
        output: Tensor = self.linear_o(self._unfold(heads))
        return output

    def _fold(self, tokens: Tensor) -> Tensor:
        """``[B, L, H*D]`` to ``[B*H, L, D]``."""
        batch, length, _ = tokens.shape
        heads = tokens.reshape(batch, length, self.num_heads, -1).transpose(1, 2)
        return heads.reshape(batch * self.num_heads, length, -1)

    def _unfold(self, heads: Tensor) -> Tensor:
        """``[B*H, L, D]`` to ``[B, L, H*D]``."""
        _, length, size = heads.shape
        items = heads.reshape(-1, self.num_heads, length, size).transpose(1, 2)
        return items.reshape(items.shape[0], length, -1)


@conformance.layer(geometry=merged_output)
def wide_head_attention(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """Document D's layer with the weights of a problem."""
    attention = WideHeadAttention(
        query_size=geometry.query_size,
        key_size=geometry.key_size,
        value_size=geometry.value_size,
        hidden_size=geometry.head_size,
        num_heads=geometry.num_heads,
    )
    like(attention, weights.q)
    load_linear(attention.linear_q, weights.q, weights.q_bias)
    load_linear(attention.linear_k, weights.k, weights.k_bias)
    load_linear(attention.linear_v, weights.v, weights.v_bias)
    load_linear(attention.linear_o, weights.o, weights.o_bias)
    return attention
