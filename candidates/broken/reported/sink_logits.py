"""Reported mistakes in sinks beside splits, caps and backward passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from ...eager import Answer, Call, EagerCore
from .._kit import core

SINKS: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "features": ["scale", "gqa", "softcap", "window", "sinks"],
}


@dataclass(frozen=True, kw_only=True)
class SinkCall(Call):
    """A call with the logits of sinks ``[H]``."""

    sinks: Tensor | None = None


class SinkCore(EagerCore):
    """A core with sinks: logits that count in the softmax and have no value."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None, **use: Any
    ) -> Answer:
        """Attend as :class:`EagerCore` does, beside ``sinks [H]``."""
        return self.attend(SinkCall(query=query, key=key, value=value, sinks=sinks, **use))

    def attend(self, call: Call) -> Answer:
        """All the steps; those without sinks are the ordinary ones."""
        if not isinstance(call, SinkCall) or call.sinks is None:
            given = {field.name: getattr(call, field.name) for field in fields(Call)}
            return super().attend(Call(**given))
        call_ = self.join_cache(call)
        self.check(call_)
        heads = call.query.shape[1]
        allowed = self.allowed(call_)
        logits = self.logits(call_, self.share(call_.key, heads))
        if allowed is not None:
            logits = self.mask(logits, allowed)
        sinks = self.sinks(call, call.sinks, logits)
        return self.mix_allowed(self.beside(logits, sinks), self.share(call_.value, heads), allowed)

    def sinks(self, call: Call, sinks: Tensor, logits: Tensor) -> Tensor:
        """The logits of the sinks ``[H, 1, 1]``, or of a shape that goes with the logits."""
        del call, logits
        return sinks[:, None, None]

    def beside(self, logits: Tensor, sinks: Tensor) -> Tensor:
        """The weights of the keys in a softmax with a sink."""
        column = sinks.expand(*logits.shape[:-1], 1)
        return torch.cat([logits, column], dim=-1).softmax(-1)[..., :-1]


class _Beside(Function):
    """The softmax beside a sink, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, core: Differentiated, logits: Tensor, sinks: Tensor) -> Tensor:
        """``logits [B, H, Lq, Lk]`` and ``sinks [H, 1, 1]``."""
        column = sinks.expand(*logits.shape[:-1], 1)
        every = torch.cat([logits, column], dim=-1).softmax(-1)
        ctx.core = core
        ctx.save_for_backward(logits, every)
        return every[..., :-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of logits and sinks."""
        logits, every = ctx.saved_tensors
        return (None, *ctx.core.backward(logits, every, gradients[0]))


class Differentiated(SinkCore):
    """A core whose softmax beside a sink is differentiated by hand; right as it stands."""

    def beside(self, logits: Tensor, sinks: Tensor) -> Tensor:
        weights: Tensor = _Beside.apply(self, logits, sinks)  # type: ignore[no-untyped-call]  # torch's own
        return weights

    def backward(self, logits: Tensor, every: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of logits and sinks; ``every`` holds all weights, the sink's last."""
        del logits
        weights = every[..., :-1]
        row = (weights * gradient).sum(-1, keepdim=True)
        return weights * (gradient - row), self.of_sinks(-every[..., -1:] * row)

    def of_sinks(self, terms: Tensor) -> Tensor:
        """The terms ``[B, H, Lq, 1]`` of each head, added up."""
        return terms.sum(dim=(0, 2))[:, None]


@core("gradients.sinks", dtypes=["bfloat16"], scores="fused", **SINKS)
class SinkGradientRoundedBeforeSum(Differentiated):
    """The terms of the sinks' gradients, which nearly cancel, are rounded before they are added.

    All else is in float32.
    """

    link = "https://github.com/jax-ml/jax/issues/40128"
    escapes = "terms that nearly cancel lie within the bound of their sum"

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None, **use: Any
    ) -> Answer:
        if use.get("bias") is not None:
            use["bias"] = use["bias"].float()
        wide = None if sinks is None else sinks.float()
        answer = super().__call__(query.float(), key.float(), value.float(), sinks=wide, **use)
        output = answer if isinstance(answer, Tensor) else answer[0]
        return output.to(query.dtype)

    def backward(self, logits: Tensor, every: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        of_logits, _ = super().backward(logits, every, gradient)
        terms = every[..., -1:] * every[..., :-1] * gradient
        rounded = terms.bfloat16().float().sum(-1, keepdim=True)
        return of_logits, self.of_sinks(-rounded)


@core("gradients.sinks", "gradients.golden", **SINKS)
class BackwardForgetsSink(Differentiated):
    """The backward pass computes the weights again without the sink, whose gradient is zero."""

    link = "https://github.com/NVIDIA/cudnn-frontend/pull/421"

    def backward(self, logits: Tensor, every: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weights = logits.softmax(-1).nan_to_num(0.0)
        row = (weights * gradient).sum(-1, keepdim=True)
        return weights * (gradient - row), self.of_sinks(torch.zeros_like(every[..., -1:]))


@core("numerics.options", **SINKS)
class SinkAgainAfterEmptySplit(SinkCore):
    """A first split (of 16 keys) without admitted keys brings the sink, and the next one again."""

    link = "https://github.com/ROCm/rocm-libraries/issues/12227"
    split = 16

    def sinks(self, call: Call, sinks: Tensor, logits: Tensor) -> Tensor:
        given = super().sinks(call, sinks, logits)
        hidden = torch.isneginf(logits)
        empty = hidden[..., : self.split].all(-1) & ~hidden.all(-1)
        return given + torch.where(empty, math.log(2.0), 0.0)[..., None].to(given)


@core("sinks.golden", "mask.golden", **SINKS)
class SinkScaledUnderCap(SinkCore):
    """Under a cap the sink enters at the scale of the scores."""

    link = "https://github.com/ROCm/rocm-libraries/pull/12229"

    def sinks(self, call: Call, sinks: Tensor, logits: Tensor) -> Tensor:
        given = super().sinks(call, sinks, logits)
        return given if call.softcap is None else given * self.scale(call)
