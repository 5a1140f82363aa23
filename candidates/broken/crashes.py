"""Mistakes that raise on inputs a caller may well have."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core


@core("shape.empty-batch")
class EmptyBatchRaises(EagerCore):
    """An empty batch raises: the length is left to ``reshape(…, -1)``, which nothing determines."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        batch, num_heads = weights.shape[:2]
        folded = weights.reshape(batch * num_heads, -1, value.shape[2])
        mixed = folded @ value.flatten(0, 1)
        return mixed.reshape(batch, num_heads, *mixed.shape[1:])


@core("shape.empty-query")
class EmptyQueryRaises(EagerCore):
    """No query at all raises: the rows are collected in a list that must not be empty."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return torch.stack([row @ value for row in weights.unsqueeze(3).unbind(2)], dim=2).squeeze(
            3
        )


@core("numerics.golden", "shape.output")
class LengthsMustMatch(EagerCore):
    """Fewer keys than queries, or more, raise an error: only self-attention was thought of."""

    def attend(self, call: Call) -> Answer:
        if call.query_length != call.key_length:
            msg = "query and key must have the same length"
            raise ValueError(msg)
        return super().attend(call)


@core("shape.output", "numerics.golden")
class OddHeadSizeRaises(EagerCore):
    """An odd head size raises: it is cut into two halves that must be equal."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        queries, keys = (heads.unflatten(-1, (2, -1)) for heads in (call.query, key))
        return torch.einsum("bhqcd,bhkcd->bhqk", queries, keys) * self.scale(call)


@core("shape.output", "numerics.golden")
class ValueSizeMustMatch(EagerCore):
    """Values of another head size than the keys raise: both are stacked into one tensor."""

    def attend(self, call: Call) -> Answer:
        key, value = torch.stack([call.key, call.value])
        return super().attend(call.replace(key=key, value=value))
