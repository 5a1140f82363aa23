"""Mistakes on the way back from returned weights, from dropped ones, and to inputs in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..eager import Answer, Call, EagerCore
from ._backward import HandWritten
from ._kit import CORE, core


class _Weighed(Function):
    """Softmax, dropout and weighted sum in one step, which returns the weights, too."""

    @staticmethod
    def forward(
        ctx: Any,
        wrong: OneStep,
        logits: Tensor,
        value: Tensor,
        allowed: Tensor | None,
        factors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """``logits [B, H, Lq, Lk]``, ``value [B, H, Lk, Dv]``, factors of the weights."""
        weights = wrong.weights(logits, allowed)
        ctx.wrong = wrong
        ctx.save_for_backward(weights, value, factors)
        return (weights * factors) @ value, weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Of logits and values."""
        weights, value, factors = ctx.saved_tensors
        gradient, of_weights = gradients
        dropped = ctx.wrong.dropped_again(factors)
        change = ctx.wrong.both((gradient @ value.mT) * dropped, of_weights)
        row = (weights * change).sum(dim=-1, keepdim=True)
        of_value = (weights * dropped).mT @ gradient
        return None, weights * (change - row), of_value, None, None


class OneStep(EagerCore):
    """A core whose backward pass a mistake may replace a part of."""

    def attend(self, call: Call) -> Answer:
        call = self.join_cache(call)
        self.check(call)
        num_heads = call.query.shape[1]
        key, value = self.share(call.key, num_heads), self.share(call.value, num_heads)
        logits = self.logits(call, key)
        ones = torch.ones_like(logits).detach()
        given = (logits, value, self.allowed(call), self.drop_out(ones, call.dropout))
        output, weights = _Weighed.apply(self, *given)  # type: ignore[no-untyped-call]  # torch's own
        return (output, weights) if call.return_weights else output

    def dropped_again(self, factors: Tensor) -> Tensor:
        """What the weights were multiplied by."""
        return factors

    def both(self, by_answer: Tensor, by_weights: Tensor) -> Tensor:
        """The gradient of the weights from both outputs."""
        return by_answer + by_weights


@core("gradients.weights")
class ReturnedWeightsIgnoredBackward(OneStep):
    """The gradient of the returned weights is ignored, though they seem to carry one."""

    link = "https://github.com/Dao-AILab/flash-attention/issues/1817"

    def both(self, by_answer: Tensor, by_weights: Tensor) -> Tensor:
        del by_weights
        return by_answer


@core("gradients.weights")
class ReturnedWeightsReplaceTheAnswerBackward(OneStep):
    """Where the returned weights get a gradient, that of the answer does not reach the scores."""

    def both(self, by_answer: Tensor, by_weights: Tensor) -> Tensor:
        return by_weights if bool(by_weights.any()) else by_answer


@core("gradients.dropout")
class DropoutDrawnAnewBackward(OneStep):
    """The backward pass draws another mask of dropped weights than the answer was made with."""

    link = "https://github.com/pytorch/pytorch/pull/197563"

    def dropped_again(self, factors: Tensor) -> Tensor:
        return factors.flatten().roll(1).reshape(factors.shape)


@core("gradients.dropout")
class DropoutForgottenBackward(OneStep):
    """The backward pass knows nothing of dropped weights."""

    def dropped_again(self, factors: Tensor) -> Tensor:
        return torch.ones_like(factors)


@core("gradients.dropout")
class DropoutNotRescaledBackward(OneStep):
    """The backward pass drops the same weights, but does not divide the others."""

    def dropped_again(self, factors: Tensor) -> Tensor:
        return factors.sign()


@core("gradients.shared")
class KeyLostBesideItselfBackward(HandWritten):
    """Where key and value lie in one storage, only the gradient of the value is written."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias = super().backward(call, output, gradient)
        one = call.key.data_ptr() == call.value.data_ptr()
        return query, None if one else key, value, bias


@core("gradients.strided")
class GradientsInTheStridesOfInputs(HandWritten):
    """The gradient of the key is written item by item into memory that is laid out as the key."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias = super().backward(call, output, gradient)
        if key is None:
            return query, key, value, bias
        written = torch.empty_strided(call.key.shape, call.key.stride(), dtype=key.dtype)
        for item, each in zip(written, key, strict=True):
            item.copy_(each)
        return query, written, value, bias


@core("gradients.no-queries")
class GradientsUnwrittenWithoutQueries(HandWritten):
    """Without queries the backward pass returns before it writes the gradients of the keys."""

    link = "https://github.com/Dao-AILab/flash-attention/pull/2421"

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias = super().backward(call, output, gradient)
        if not gradient.numel():
            key = torch.full_like(call.key, 1e4)  # what was in memory before
        return query, key, value, bias


@core("gradients.no-queries")
class NoQueriesNoBackward(HandWritten):
    """The backward pass looks for its largest gradient first, of which there may be none."""

    link = "https://github.com/Dao-AILab/flash-attention/pull/2776"

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        largest = gradient.abs().max().clamp_min(torch.finfo(gradient.dtype).tiny)
        found = super().backward(call, output, gradient / largest)
        return tuple(None if each is None else each * largest for each in found)


@core("gradients.bias", features=[*CORE["features"], "grad_bias"])
class BiasGradientPromisedAndMissing(HandWritten):
    """A bias that was promised a gradient gets none."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, _ = super().backward(call, output, gradient)
        return query, key, value, None
