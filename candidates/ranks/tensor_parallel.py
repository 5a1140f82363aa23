"""Tensor parallelism: each rank has some heads, and the rows or columns of the weights they use.

Shoeybi et al., "Megatron-LM", 2019 (arXiv:1909.08053), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

import conformance

from ._communication import copied, summed

LAYER = conformance.Ranks(2, weights="heads")
HEADS = conformance.Ranks(2, query="heads", output="heads")


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Attention of heads ``[B, H, L, D]``; fewer key/value heads are shared by groups."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    logits = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    if not causal:
        return logits.softmax(-1) @ value
    rows, columns = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
    seen = columns - rows <= key.shape[2] - query.shape[2]
    filled = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
    return filled.softmax(-1).masked_fill(~seen, 0.0) @ value


class TensorParallel:
    """A layer of which each rank computes some heads, step by step; a mistake replaces a step."""

    def __call__(
        self, geometry: conformance.Geometry, weights: conformance.ProjectionWeights
    ) -> Callable[..., Tensor]:
        """Build the layer of this rank's part of the weights."""

        def forward(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
            """Attend ``query [B, Lq, Eq]`` to ``key [B, Lk, Ek]``, ``value [B, Lk, Ev]``."""
            sizes = (geometry.head_size, geometry.head_size, geometry.value_head_size)
            inputs = zip(
                (query, key, value),
                (weights.q, weights.k, weights.v),
                (weights.q_bias, weights.k_bias, weights.v_bias),
                sizes,
                strict=True,
            )
            heads = [
                linear(copied(tokens), matrix, bias).unflatten(-1, (-1, size)).transpose(1, 2)
                for tokens, matrix, bias, size in inputs
            ]
            mixed = attend(*heads, causal=causal).transpose(1, 2).flatten(2)
            return self.projected(mixed, weights)

        return forward

    def projected(self, mixed: Tensor, weights: conformance.ProjectionWeights) -> Tensor:
        """The output projection: the sum over all ranks, and then the bias, once."""
        total = summed(mixed if weights.o is None else linear(mixed, weights.o))
        return total if weights.o_bias is None else total + weights.o_bias


tensor_parallel_layer = conformance.layer(
    name="tensor_parallel_layer",
    causal="bottom-right",
    empty_rows="zeros",
    features=["gqa", "grad_weights"],
    ranks=LAYER,
)(TensorParallel())


class OwnHeads:
    """Each rank has some heads, and all key/value heads, of which it takes those it needs."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False
    ) -> Tensor:
        """Attend ``query [B, h, Lq, D]`` to those of ``key [B, Hkv, Lk, D]`` that it shares."""
        every = query.shape[1] * dist.get_world_size()
        if every % key.shape[1] or key.shape[1:3] != value.shape[1:3]:
            msg = f"{every} heads with {key.shape[1]} key and {value.shape[1]} value heads"
            raise ValueError(msg)
        shared = self.shared(query.shape[1], key.shape[1])
        own_keys, own_values = copied(key)[:, shared], copied(value)[:, shared]
        return attend(query, own_keys, own_values, causal=causal)

    def shared(self, own: int, kv_heads: int) -> Tensor:
        """The key/value head of each of this rank's heads."""
        first = own * dist.get_rank()
        group = own * dist.get_world_size() // kv_heads
        return torch.arange(first, first + own) // group


own_heads = conformance.core(
    name="own_heads", causal="bottom-right", empty_rows="zeros", features=["gqa"], ranks=HEADS
)(OwnHeads())
