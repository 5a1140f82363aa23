"""Document B2: self-attention on one sequence, without a batch axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import conformance
from conformance import Geometry, ProjectionWeights

from ._load import heads_of_one_size, like, load_linear


class UnbatchedAttention(nn.Module):
    """Self-attention ``[tokens, embed_dim] -> [tokens, embed_dim]``, without a mask.

    ``head_dim * num_heads`` need not be ``embed_dim``. Raises ValueError for a batched input, and
    RuntimeError for an empty sequence, whose head size torch cannot infer.
    """

    def __init__(self, embed_dim: int, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dim, head_dim * num_heads)
        self.k_proj = nn.Linear(embed_dim, head_dim * num_heads)
        self.v_proj = nn.Linear(embed_dim, head_dim * num_heads)
        self.out_proj = nn.Linear(head_dim * num_heads, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every token to every token."""
        tokens, _ = x.shape
        query, key, value = (
            projection(x).reshape(tokens, self.num_heads, -1).transpose(0, 1)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.head_dim)
        merged = (torch.softmax(scores, dim=-1) @ value).transpose(0, 1).reshape(tokens, -1)
        output: Tensor = self.out_proj(merged)
        return output


def _geometry(geometry: Geometry) -> Geometry:
    geometry = heads_of_one_size(geometry)
    width = geometry.query_size
    return geometry.replace(key_size=width, value_size=width, output_size=width)


@conformance.layer(inputs="self", batched=False, geometry=_geometry)
def unbatched_attention(geometry: Geometry, weights: ProjectionWeights) -> nn.Module:
    """Document B2's layer with the weights of a problem."""
    attention = UnbatchedAttention(geometry.query_size, geometry.head_size, geometry.num_heads)
    like(attention, weights.q)
    load_linear(attention.q_proj, weights.q, weights.q_bias)
    load_linear(attention.k_proj, weights.k, weights.k_bias)
    load_linear(attention.v_proj, weights.v, weights.v_bias)
    load_linear(attention.out_proj, weights.o, weights.o_bias)
    return attention
