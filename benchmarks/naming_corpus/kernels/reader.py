"""A layer that reads a memory: one matrix makes keys and values, as in BART's cross-attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import conformance


def memory_width(geometry: conformance.Geometry) -> conformance.Geometry:
    """Heads of one size, and a memory that has one width."""
    return geometry.replace(
        num_kv_heads=geometry.num_heads,
        value_head_size=geometry.head_size,
        value_size=geometry.key_size,
    )


@conformance.layer(
    inputs="memory",
    masks=["keep", "bias"],
    empty_rows="zeros",
    geometry=memory_width,
)
class Reader:
    """A query projection, one for keys and values together, an output projection."""

    def __init__(
        self, geometry: conformance.Geometry, weights: conformance.ProjectionWeights
    ) -> None:
        self.heads, self.size = geometry.num_heads, geometry.head_size
        self.w = weights
        self.packed = torch.cat([weights.k, weights.v])
        biases = (weights.k_bias, weights.v_bias)
        self.packed_bias = (
            None if None in biases else torch.cat([b for b in biases if b is not None])
        )

    def __call__(
        self,
        query: Tensor,
        context: Tensor,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend ``[B, Lq, Eq]`` to the memory ``[B, Lk, Ek]``."""
        batch, lq, _ = query.shape
        lk = context.shape[1]
        q = functional.linear(query, self.w.q, self.w.q_bias)
        q = q.view(batch, lq, self.heads, self.size).transpose(1, 2)
        both = functional.linear(context, self.packed, self.packed_bias)
        if self.packed_bias is None:
            both = both + self._lone_biases(both)
        both = both.view(batch, lk, 2, self.heads, self.size)
        k, v = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
        scores = q @ k.mT * self.size**-0.5
        hidden = torch.zeros(scores.shape, dtype=torch.bool, device=query.device)
        if keep is not None:
            hidden = hidden | ~keep
        if bias is not None:
            scores = scores + bias
            hidden = hidden | bias.isneginf()
        probs = scores.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)
        mixed = (probs @ v).transpose(1, 2).reshape(batch, lq, self.heads * self.size)
        return mixed if self.w.o is None else functional.linear(mixed, self.w.o, self.w.o_bias)

    def _lone_biases(self, like: Tensor) -> Tensor:
        """The biases of keys and values side by side where one of them may be missing."""
        width = self.heads * self.size
        halves = [
            like.new_zeros(width) if bias is None else bias
            for bias in (self.w.k_bias, self.w.v_bias)
        ]
        return torch.cat(halves)
