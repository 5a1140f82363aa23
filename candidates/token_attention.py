"""Document A: self-attention over tokens, values having a head size of their own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import conformance
from conformance import Geometry, ProjectionWeights

from ._load import like, load_linear


class TokenAttention(nn.Module):
    """Self-attention from ``[batch, tokens, token_size]`` to the same shape, without a mask.

    ``qk_size`` and ``v_size`` are the head sizes of queries/keys and of values; neither need divide
    ``token_size``. Raises AssertionError for an input of another width.
    """

    def __init__(self, token_size: int, qk_size: int, v_size: int, head_num: int) -> None:
        super().__init__()
        self.token_size = token_size
        self.qk_size = qk_size
        self.v_size = v_size
        self.head_num = head_num
        # As in the document: neither a parameter nor a buffer, so it does not follow `.to(...)`.
        self.scale = torch.tensor(1.0 / math.sqrt(qk_size))
        self.W_q = nn.Linear(token_size, qk_size * head_num)
        self.W_k = nn.Linear(token_size, qk_size * head_num)
        self.W_v = nn.Linear(token_size, v_size * head_num)
        self.W = nn.Linear(v_size * head_num, token_size)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every token to every token."""
        if x.shape[-1] != self.token_size:
            msg = f"the tokens have width {x.shape[-1]}, not token_size={self.token_size}"
            raise AssertionError(msg)
        query = self._split(self.W_q(x), self.qk_size)
        key = self._split(self.W_k(x), self.qk_size)
        value = self._split(self.W_v(x), self.v_size)
        weights = torch.softmax(query @ key.transpose(-1, -2) * self.scale, dim=-1)
        batch, tokens, _ = x.shape
        merged = (
            (weights @ value).transpose(1, 2).reshape(batch, tokens, self.head_num * self.v_size)
        )
        output: Tensor = self.W(merged)
        return output

    def _split(self, projected: Tensor, size: int) -> Tensor:
        batch, tokens, _ = projected.shape
        return projected.reshape(batch, tokens, self.head_num, size).transpose(1, 2)


@conformance.layer(
    inputs="self",
    geometry={
        "key_size": "query_size",
        "value_size": "query_size",
        "output_size": "query_size",
        "num_kv_heads": "num_heads",
    },
)
def token_attention(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """Document A's layer with the weights of a problem."""
    attention = TokenAttention(
        token_size=geometry.query_size,
        qk_size=geometry.head_size,
        v_size=geometry.value_head_size,
        head_num=geometry.num_heads,
    )
    like(attention, weights.q)
    load_linear(attention.W_q, weights.q, weights.q_bias)
    load_linear(attention.W_k, weights.k, weights.k_bias)
    load_linear(attention.W_v, weights.v, weights.v_bias)
    load_linear(attention.W, weights.o, weights.o_bias)
    return attention
