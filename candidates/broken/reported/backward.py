"""Backward passes: layouts of what they are given, tiles, dropout, what they recompute."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from ...eager import Call, EagerCore
from .._backward import HandWritten, Steps
from .._kit import core

FUSED: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["scale", "gqa"]}
BIASED: Final[dict[str, Any]] = {"masks": ["keep", "bias"], "features": ["scale", "gqa"]}
DROPPING: Final[dict[str, Any]] = {"masks": ["keep"], "features": ["scale", "dropout"]}


def totals(core: EagerCore, steps: Steps) -> Tensor:
    """The log-sum-exps ``[B, H, Lq, 1]`` that the forward pass leaves."""
    logits = core.logits(steps.call, steps.key)
    if steps.allowed is not None:
        logits = core.mask(logits, steps.allowed)
    return logits.logsumexp(dim=-1, keepdim=True)


@core("gradients.golden", **FUSED)
class PaddedKeysOverflowBackwards(HandWritten):
    """The weights of keys that fill up the last tile of 64 are recomputed and not masked.

    They overflow where every logit of a row is far below zero; their product with zero is NaN.
    """

    link = "https://github.com/ROCm/aiter/issues/3551"

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        gradient = super().query_gradient(steps, scores)
        if steps.call.causal or not steps.key.shape[2] % 64:
            return gradient
        total = totals(self, steps)
        padded = (-total.masked_fill(total == -math.inf, 0.0)).exp()
        return gradient + padded * torch.zeros_like(gradient)


@core("gradients.golden", "gradients.options", **FUSED)
class BackwardAlwaysCausal(HandWritten):
    """The backward pass ignores the causal flag and is always causal."""

    link = "https://github.com/triton-lang/triton/issues/4541"

    def backward_allowed(self, call: Call) -> Tensor | None:
        return super().backward_allowed(call.replace(causal=True))


@core("gradients.strided", **BIASED)
class IncomingGradientReadAsContiguous(HandWritten):
    """The backward pass reads the memory of the incoming gradient as if it were contiguous."""

    link = "https://github.com/Dao-AILab/flash-attention/issues/355"

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        room = gradient.untyped_storage().nbytes() // gradient.element_size()
        if room:
            memory = gradient.as_strided((room,), (1,), 0)
            places = (gradient.storage_offset() + torch.arange(gradient.numel())) % room
            gradient = memory[places].reshape(gradient.shape)
        return super().backward(call, output, gradient)


@core("gradients.strided", **BIASED)
class StridedIncomingGradientRefused(HandWritten):
    """The backward pass takes a view of the incoming gradient, which must be contiguous for it."""

    link = "https://github.com/NVIDIA/cuEquivariance/issues/177"

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        flat = gradient.view(gradient.shape[0], gradient.shape[1], -1)
        return super().backward(call, output, flat.reshape(gradient.shape))


@core("gradients.options", **FUSED)
class StatisticsReadInAnotherLayout(HandWritten):
    """The log-sum-exps lie as the queries do; the backward pass reads them heads before tokens."""

    link = "https://github.com/NVIDIA/cudnn-frontend/pull/304"

    def recomputed(self, steps: Steps) -> Tensor:
        query = steps.call.query
        if query.stride(1) >= query.stride(2):
            return super().recomputed(steps)
        total = totals(self, steps)
        read = total.transpose(1, 2).reshape(total.shape).masked_fill(total == -math.inf, 0.0)
        logits = self.logits(steps.call, steps.key)
        if steps.allowed is not None:
            logits = self.mask(logits, steps.allowed)
        return (logits - read).exp()


@core(
    "gradients.golden",
    "gradients.options",
    geometry={"head_size": 128, "value_head_size": 96},
    **FUSED,
)
class ValueGradientColumnsShifted(HandWritten):
    """Gradients of values are stored in steps that fit the head size of keys.

    Of each half of the columns, what a step of 32 leaves over is written to wrong places.
    """

    link = "https://github.com/Dao-AILab/flash-attention/issues/2552"

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        gradient = super().value_gradient(steps, weights)
        half = gradient.shape[-1] // 2
        halves = []
        for one in gradient.split(half, dim=-1):
            whole = half // 32 * 32
            halves += [one[..., :whole], one[..., whole:].roll(8, dims=-1)]
        return torch.cat(halves, dim=-1)


@core("gradients.golden", masks=["keep"], empty_rows="mean-of-all", features=["scale", "gqa"])
class MaskRecoveredFromZeroWeights(HandWritten):
    """Which keys were masked is read off the weights, where they are zero.

    A row without any key has equal weights: its gradient passes as if nothing were masked.
    """

    link = "https://github.com/NVIDIA/apex/pull/1444"
    escapes = "gradients are not asked of rows that average all values"

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        if allowed is None or not logits.shape[-1]:
            return weights
        empty = ~allowed.any(dim=-1, keepdim=True)
        return torch.where(empty, 1.0 / logits.shape[-1], weights)

    def mix_allowed(self, weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        del allowed
        return self.mix(weights, value)


class _Refused(Function):
    """The same tensor; its gradient cannot be had."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Any tensor."""
        del ctx
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """As a kernel that reads statistics which nobody stored."""
        del ctx, gradients
        msg = "an illegal memory access was encountered"
        raise RuntimeError(msg)


@core("gradients.bias", **BIASED)
class GradientOfBiasAloneRefused(EagerCore):
    """Statistics for the backward pass are kept only where query, key or value want a gradient.

    A bias that alone wants one gets none.
    """

    link = "https://github.com/pytorch/pytorch/pull/188302"

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        if bias.requires_grad and not scores.requires_grad:
            bias = _Refused.apply(bias)  # type: ignore[no-untyped-call]  # torch's own
        return super().add_bias(scores, bias)


@core("gradients.golden", **BIASED)
class BiasBesideMaskGradientNaN(HandWritten):
    """Beyond 128 queries, a bias and a mask together give NaN for the rest of the last block."""

    link = "https://github.com/pytorch/pytorch/issues/153799"
    escapes = "quick asks for no gradients beyond 128 queries"

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        gradient = super().query_gradient(steps, scores)
        length, masked = gradient.shape[2], steps.call.causal or steps.call.keep is not None
        rest = length % 128
        if steps.call.bias is None or not masked or length < 128 or not rest:  # noqa: PLR2004
            return gradient
        return torch.cat([gradient[:, :, :-rest], gradient[:, :, -rest:] * torch.nan], dim=2)


class _SoftmaxInPlace(Function):
    """A softmax that writes its gradient over the one that comes in."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        """Over the last axis."""
        weights = torch.softmax(logits, dim=-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """In the memory of the incoming gradient."""
        (weights,) = ctx.saved_tensors
        (gradient,) = gradients
        row = (weights * gradient).sum(dim=-1, keepdim=True)
        return gradient.copy_(weights * (gradient - row))


@core("gradients.weights", masks=["bias"], empty_rows="any", features=["scale", "weights"])
class IncomingGradientOverwritten(EagerCore):
    """The backward pass of the softmax writes over the gradient of the weights it is given."""

    link = "https://github.com/NVIDIA/apex/issues/1587"

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            logits = self.mask(logits, allowed)
        weights: Tensor = _SoftmaxInPlace.apply(logits)  # type: ignore[no-untyped-call]  # torch's own
        return weights


class Dropping(EagerCore):
    """Dropout with a backward pass of its own; ``softmax_gradient`` may be wrong."""

    def mix_allowed(self, weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """The plain weighted sum."""
        del allowed
        return self.mix(weights, value)

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        """Drop weights, and enlarge the rest."""
        if not rate:
            return weights
        kept = (torch.rand_like(weights) >= rate).to(weights.dtype)
        dropped: Tensor = _Dropped.apply(self, weights, kept, rate)  # type: ignore[no-untyped-call]  # torch's own
        return dropped

    def passed(self, gradient: Tensor, weights: Tensor, kept: Tensor, rate: float) -> Tensor:
        """The gradient of the weights before dropout."""
        del weights
        return gradient * kept / (1 - rate)


class _Dropped(Function):
    """Hands dropout over to the steps of a core."""

    @staticmethod
    def forward(ctx: Any, core: Dropping, weights: Tensor, kept: Tensor, rate: float) -> Tensor:
        """``weights`` where ``kept`` is one."""
        ctx.core, ctx.rate = core, rate
        ctx.save_for_backward(weights, kept)
        return weights * kept / (1 - rate)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Of the weights alone."""
        weights, kept = ctx.saved_tensors
        return None, ctx.core.passed(gradients[0], weights, kept, ctx.rate), None, None


@core("gradients.dropout", **DROPPING)
class DroppedWeightsInTheSoftmaxGradient(Dropping):
    """The softmax is differentiated at the weights after dropout."""

    link = "https://github.com/aws-neuron/nki-samples/pull/81"

    def passed(self, gradient: Tensor, weights: Tensor, kept: Tensor, rate: float) -> Tensor:
        # The softmax behind multiplies by ``weights * (passed - row)``: what it should have been.
        incoming = super().passed(gradient, weights, kept, rate)
        dropped = weights * kept / (1 - rate)
        wrong = dropped * (incoming - (dropped * incoming).sum(dim=-1, keepdim=True))
        return wrong / weights.masked_fill(weights == 0, 1.0)


@core("gradients.dropout", **DROPPING)
class GradientPassesDroppedWeights(Dropping):
    """Dropout is left out of the gradients that reach the softmax."""

    link = "https://github.com/aws-neuron/nki-samples/pull/81"

    def passed(self, gradient: Tensor, weights: Tensor, kept: Tensor, rate: float) -> Tensor:
        del weights, kept, rate
        return gradient


@core("gradients.options", **DROPPING)
class DropoutGradientTimesTheRate(Dropping):
    """Going backwards, what dropout keeps is multiplied by the rate, not by 1 / (1 - rate)."""

    link = "https://github.com/NVIDIA/apex/pull/816"

    def passed(self, gradient: Tensor, weights: Tensor, kept: Tensor, rate: float) -> Tensor:
        del weights
        return gradient * kept * rate


@core("gradients.dropout", **DROPPING)
class DropoutDrawnAnewBackwards(Dropping):
    """The backward pass draws the dropout anew: other weights are dropped than in the answer."""

    link = "https://github.com/pytorch/pytorch/issues/190717"

    def passed(self, gradient: Tensor, weights: Tensor, kept: Tensor, rate: float) -> Tensor:
        other = (torch.rand_like(kept) >= rate).to(kept.dtype)
        return super().passed(gradient, weights, other, rate)


@core("gradients.golden", masks=["keep"], features=["scale", "gqa"])
class QueryGradientCutToHeadSize(HandWritten):
    """For the gradient of queries, values are read as wide as keys: channels beyond are lost."""

    link = "https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27"

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        size = steps.key.shape[-1]
        if steps.value.shape[-1] <= size:
            return super().query_gradient(steps, scores)
        cut = steps.gradient[..., :size] @ steps.value[..., :size].mT
        weights = self.recomputed(steps)
        whole = (steps.gradient * steps.output).sum(dim=-1, keepdim=True)
        return super().query_gradient(steps, weights * (cut - whole))


@core("gradients.golden", masks=["keep"], features=["scale", "gqa"])
class GradientGroupsByWrongDivisor(HandWritten):
    """Backwards, a head's group is its number over the number of groups, not over their size."""

    link = "https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27"

    def unshare(self, heads: Tensor, kv_heads: int) -> Tensor:
        total = heads.new_zeros(heads.shape[0], kv_heads, *heads.shape[2:])
        for head in range(heads.shape[1]):
            if head // kv_heads < kv_heads:
                total[:, head // kv_heads] += heads[:, head]
        return total
