"""A self-attention layer whose three projections are one matrix, as in GPT-2."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import conformance


def one_width(geometry: conformance.Geometry) -> conformance.Geometry:
    """All widths are the heads side by side."""
    width = geometry.num_heads * geometry.head_size
    return geometry.replace(
        num_kv_heads=geometry.num_heads,
        value_head_size=geometry.head_size,
        query_size=width,
        key_size=width,
        value_size=width,
        output_size=width,
        key_length=geometry.query_length,
    )


@conformance.layer(
    inputs="self",
    masks=["drop"],
    causal="bottom-right",
    empty_rows="zeros",
    geometry=one_width,
)
class FusedAttention:
    """One product for query, key and value, and one for the output."""

    def __init__(
        self, geometry: conformance.Geometry, weights: conformance.ProjectionWeights
    ) -> None:
        self.heads = geometry.num_heads
        self.size = geometry.head_size
        self.matrix = torch.cat([weights.q, weights.k, weights.v], dim=0)
        biases = [weights.q_bias, weights.k_bias, weights.v_bias]
        zeros = self.matrix.new_zeros(self.heads * self.size)
        self.bias = torch.cat([zeros if bias is None else bias for bias in biases])
        self.out = weights.o
        self.out_bias = weights.o_bias

    def __call__(self, x: Tensor, *, drop: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attend ``[B, L, E]`` to itself."""
        batch, length, _ = x.shape
        packed = functional.linear(x, self.matrix, self.bias)
        packed = packed.reshape(batch, length, 3, self.heads, self.size)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        logits = torch.matmul(query, key.transpose(-1, -2)) * self.size**-0.5
        hidden = torch.zeros(1, 1, length, length, dtype=torch.bool, device=x.device)
        if drop is not None:
            hidden = hidden | drop
        if causal:
            hidden = hidden | hidden.new_ones(length, length).triu(1)
        weights = logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        weights = weights.masked_fill(hidden, 0.0)
        merged = torch.matmul(weights, value).permute(0, 2, 1, 3).flatten(2)
        return merged if self.out is None else functional.linear(merged, self.out, self.out_bias)
