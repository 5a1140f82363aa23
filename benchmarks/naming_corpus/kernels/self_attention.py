"""A self-attention module with four linear projections, as in tutorials."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import conformance


class SelfAttention(nn.Module):
    """Multi-head self-attention over ``[B, L, E]``."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = width // num_heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, *, keep: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attend; a query without keys gets the bias of the output alone."""
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device)
        if causal:
            mask = torch.tril(mask)
        if keep is not None:
            mask = mask & keep
        scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = torch.where(mask, weights, torch.zeros_like(weights))
        context = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)
        output: Tensor = self.out_proj(context)
        return output


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
    masks=["keep"],
    causal="bottom-right",
    empty_rows="zeros",
    geometry=one_width,
)
def self_attention(
    geometry: conformance.Geometry, weights: conformance.ProjectionWeights
) -> nn.Module:
    """Build the module and load the weights."""
    module = SelfAttention(geometry.query_size, geometry.num_heads)
    state = {
        "q_proj.weight": weights.q,
        "k_proj.weight": weights.k,
        "v_proj.weight": weights.v,
        "out_proj.weight": weights.o,
        "q_proj.bias": weights.q_bias,
        "k_proj.bias": weights.k_bias,
        "v_proj.bias": weights.v_bias,
        "out_proj.bias": weights.o_bias,
    }
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            given = state[name]
            parameter.copy_(torch.zeros_like(parameter) if given is None else given)
    return module.to(weights.q.dtype)
