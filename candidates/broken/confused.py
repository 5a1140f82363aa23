"""Mistakes of layers that take one thing for another where the sizes let them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import conformance

from ..eager import Answer, EagerLayer
from ._kit import layer


@layer("numerics.golden")
class BatchSecondWhenSquare(EagerLayer):
    """Batch and tokens change places when there are as many items as tokens."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        square = query.shape[0] == query.shape[1] == key.shape[1]
        if options or not square:
            return super().__call__(query, key, value, **options)
        swapped = (tensor.transpose(0, 1) for tensor in (query, key, value))
        answer = super().__call__(*swapped)
        return answer if isinstance(answer, tuple) else answer.transpose(0, 1)


@layer("numerics.golden")
class KeysFromQueries(EagerLayer):
    """The keys are projected from the queries when both have the same shape: self-attention."""

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().heads(query, query if query.shape == key.shape else key, value)


@layer("numerics.golden")
class ValuesFromKeys(EagerLayer):
    """The values are projected from the keys' tokens when those of the values are as wide."""

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().heads(query, key, key if key.shape == value.shape else value)


@layer("numerics.golden", inputs="memory", features=["weights"])
class MemoryForgotten(EagerLayer):
    """Cross-attention attends to its own tokens where the memory has the same shape."""

    def __call__(self, query: Tensor, key: Tensor, value: Any = None, **options: Any) -> Answer:
        del value
        memory = query if query.shape == key.shape else key
        return super().__call__(query, memory, memory, **options)


@layer("numerics.golden")
class QueryMatrixTransposed(EagerLayer):
    """The query projection is multiplied from the wrong side, which a square matrix lets pass."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        matrix = self.weights.q
        if name != "q" or matrix.shape[0] != matrix.shape[1]:
            return super().project(tokens, name)
        return functional.linear(tokens, matrix.mT, self.weights.q_bias)


class SelfLayer(EagerLayer):
    """A layer with one input and a fused projection."""

    def __call__(self, x: Tensor, **options: Any) -> Answer:  # type: ignore[override]  # fewer inputs are the point
        """Attend ``x [B, L, E]`` to itself."""
        return super().__call__(x, x, x, **options)

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All three at once, from one matrix product."""
        del key, value
        names = ("q", "k", "v")
        fused = torch.cat([super(SelfLayer, self).project(query, name) for name in names], dim=-1)
        return self.cut(fused)

    def cut(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cut ``[B, L, 3*H*D]`` into the heads of query, key and value."""
        raise NotImplementedError


SELF: dict[str, Any] = {
    "inputs": "self",
    "geometry": {"value_head_size": "head_size"},
    "features": ["weights"],
}


@layer("numerics.golden", **SELF)
class FusedInAnotherOrder(SelfLayer):
    """The fused projection is cut into key, query and value though it holds the query first."""

    def cut(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, query, value = (self.split(part, self.num_heads) for part in fused.chunk(3, dim=-1))
        return query, key, value


@layer("numerics.golden", **SELF)
class FusedCutByHead(SelfLayer):
    """The fused projection is cut as query, key, value of each head, as other checkpoints are."""

    def cut(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.split(fused, self.num_heads).chunk(3, dim=-1)
        return query, key, value


@layer("mask.golden", "mask.no-leak", masks=["lengths"])
class PaddedAnswersZeroed(EagerLayer):
    """The answers of queries past the length are zeroed: lengths tell about keys."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        answer = super().__call__(query, key, value, **options)
        lengths = options.get("lengths")
        if lengths is None or isinstance(answer, tuple) or query.shape[1] != key.shape[1]:
            return answer
        places = torch.arange(query.shape[1])[None, :, None]
        return answer.masked_fill(places >= lengths.reshape(-1, 1, 1), 0.0)


@layer("numerics.golden")
class NormalisedInside(EagerLayer):
    """The answer is normalised to zero mean and unit variance, which is the block's business."""

    def project_output(self, merged: Tensor) -> Tensor:
        projected = super().project_output(merged)
        return functional.layer_norm(projected, projected.shape[-1:])


@layer("numerics.golden")
class QueryBiasUnscaled(EagerLayer):
    """The bias of the query projection is added after the scaling."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        bias = self.weights.q_bias
        if name != "q" or bias is None:
            return super().project(tokens, name)
        root = (self.weights.q.shape[0] / self.num_heads) ** 0.5
        return functional.linear(tokens, self.weights.q, bias * root)


@layer("numerics.golden")
class GivenWeightsZeroed(EagerLayer):
    """Building the layer zeroes the given output matrix, so that zeros would be the answer."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        weights.o.zero_()
        if weights.o_bias is not None:
            weights.o_bias.zero_()


@layer("mask.per-head", "mask.golden", masks=["keep"])
class MaskPerHeadRefused(EagerLayer):
    """A mask with a head axis raises: the fast path knows one mask for all heads."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        keep = options.get("keep")
        if keep is not None and keep.shape[1] > 1:
            msg = "one mask for all heads is supported"
            raise NotImplementedError(msg)
        return super().__call__(query, key, value, **options)
