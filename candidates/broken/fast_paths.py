"""Mistakes of a second path that is taken for some calls only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance

from ..eager import Answer, Call, EagerCore, EagerLayer
from ._kit import core, layer


@core("state.grad-mode")
class UnscaledWhileRecording(EagerCore):
    """The path that records gradients forgets the scale, the one without them has it."""

    def scale(self, call: Call) -> float:
        return 1.0 if torch.is_grad_enabled() else super().scale(call)


@core("state.grad-mode")
class UnscaledForGradients(EagerCore):
    """The function that has its own backward pass forgets the scale: inputs want gradients."""

    def scale(self, call: Call) -> float:
        return 1.0 if call.query.requires_grad else super().scale(call)


@layer("state.grad-mode", masks=["keep"])
class FloatMaskWhileRecording(EagerLayer):
    """The slow path takes the boolean mask for numbers to add to the logits."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        keep = options.get("keep")
        if keep is not None and torch.is_grad_enabled():
            options = {**options, "keep": None, "bias": keep.to(query.dtype)}
        return super().__call__(query, key, value, **options)


@core("shape.shared")
class SharedValuesLost(EagerCore):
    """Key and value that are one object are taken for a cache that holds keys only."""

    def attend(self, call: Call) -> Answer:
        if call.value is call.key:
            call = call.replace(value=torch.zeros_like(call.value))
        return super().attend(call)


@layer("shape.shared")
class SelfPathUnscaled(EagerLayer):
    """Self-attention, told by query and key being one object, takes a path without the scale."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        self.alone = query is key
        return super().__call__(query, key, value, **options)

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, keys, values = super().heads(query, key, value)
        return (heads * heads.shape[-1] ** 0.5 if self.alone else heads), keys, values


@layer("numerics.golden")
class OddHeadsUnscaled(EagerLayer):
    """The path for an odd number of heads, which the fast one does not take, forgets the scale."""

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, keys, values = super().heads(query, key, value)
        odd = self.num_heads % 2 == 1 and self.num_heads > 1
        return (heads * heads.shape[-1] ** 0.5 if odd else heads), keys, values


@layer("numerics.golden")
class BiaslessRefused(EagerLayer):
    """A layer without biases raises: the fast path adds them without asking."""

    def __init__(self, geometry: conformance.Geometry, weights: Any) -> None:
        super().__init__(geometry, weights)
        self.bias = weights.q_bias.clone()


@core("numerics.golden", "numerics.scale")
class WideHeadsHalved(EagerCore):
    """Heads wider than 64 channels are read in one step of 64: the rest takes no part."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        scale = self.scale(call)
        narrow = call.replace(query=call.query[..., :64], scale=scale)
        return super().scores(narrow, key[..., :64])


@core("numerics.golden")
class OneQueryUnscaled(EagerCore):
    """The path for a single query, as in decoding, forgets the scale."""

    def scale(self, call: Call) -> float:
        return 1.0 if call.query_length == 1 and call.scale is None else super().scale(call)


@core("numerics.golden", "equivariance.heads")
class HeadsFromEighthCoarse(EagerCore):
    """Heads behind the eighth use the keys of the heads before: a register holds eight."""

    def share(self, heads: Tensor, num_heads: int) -> Tensor:
        shared = super().share(heads, num_heads)
        return shared[:, torch.arange(num_heads) % 8]
