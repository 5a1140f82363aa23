"""Mistakes in a backward pass that only a cache of keys and values shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..eager import Answer, Call, EagerCore
from ._backward import HandWritten, Steps
from ._kit import core
from .caches import CACHED, held

ALSO = ("gradients.golden", "gradients.options")


class _Joined(Function):
    """Cached tokens before new ones; the gradient is cut up the other way round."""

    @staticmethod
    def forward(ctx: Any, past: Tensor, new: Tensor) -> Tensor:
        """``[B, H, P, D]`` and ``[B, H, L, D]`` to ``[B, H, P + L, D]``."""
        ctx.past, ctx.new = past.shape[2], new.shape[2]
        return torch.cat([past, new], dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The first gradients go to the new tokens, the last ones to the cached."""
        (gradient,) = gradients
        return gradient[:, :, ctx.new :], gradient[:, :, : ctx.new]


@core("gradients.cache", *ALSO, **CACHED)
class CacheGradientsCutTheOtherWay(EagerCore):
    """The gradient of the joined keys is cut up as if new keys came before cached ones."""

    def join_cache(self, call: Call) -> Call:
        if call.past_key is None or call.past_value is None:
            return call
        return call.replace(
            key=_Joined.apply(call.past_key, call.key),  # type: ignore[no-untyped-call]  # torch's own
            value=_Joined.apply(call.past_value, call.value),  # type: ignore[no-untyped-call]  # torch's own
            past_key=None,
            past_value=None,
        )


class _WithCache(HandWritten):
    """A backward pass by hand behind a cache of ``past`` tokens."""

    past = 0

    def attend(self, call: Call) -> Answer:
        behind = type(self)()
        behind.past = held(call)
        return HandWritten.attend(behind, self.join_cache(call))


@core("gradients.cache", *ALSO, **CACHED)
class CacheDiagonalBackward(_WithCache):
    """The backward pass counts the causal diagonal from the first cached key."""

    def backward_allowed(self, call: Call) -> Tensor | None:
        if not (self.past and call.causal):
            return super().backward_allowed(call)
        return EagerCore(causal="top-left").allowed(call)


@core("gradients.cache", *ALSO, **CACHED)
class CacheWithoutGradientsOfValues(_WithCache):
    """The gradient of cached values is zero, that of cached keys is right."""

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        found = super().value_gradient(steps, weights)
        return torch.cat([torch.zeros_like(found[:, :, : self.past]), found[:, :, self.past :]], 2)
