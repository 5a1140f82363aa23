"""A correct core with a backward pass written by hand, step by step; a mistake replaces a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..eager import Answer, Call, EagerCore, EagerLayer


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What a backward pass knows of its call; heads of key and value are shared out already.

    ``gradient [B, H, Lq, Dv]`` is that of the answer, ``output`` the answer, ``scale`` the factor
    of the scores and ``allowed`` the table of admitted keys, None for all.
    """

    call: Call
    gradient: Tensor
    output: Tensor
    key: Tensor
    value: Tensor
    scale: float
    allowed: Tensor | None


class HandWritten(EagerCore):
    """Forward as always; backward as in Dao et al. 2022, appendix B.2, weights recomputed."""

    def attend(self, call: Call) -> Answer:
        """Record one step for the whole call; weights and dropout go the ordinary way."""
        if call.return_weights or call.dropout:
            return super().attend(call)
        answer: Answer = _Attention.apply(self, call, call.query, call.key, call.value, call.bias)  # type: ignore[no-untyped-call]  # torch's own
        return answer

    def plain(self, call: Call) -> Tensor:
        """The answer alone."""
        answer = super().attend(call)
        return answer if isinstance(answer, Tensor) else answer[0]

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of query, key, value and bias."""
        num_heads, kv_heads = call.query.shape[1], call.key.shape[1]
        steps = Steps(
            call=call,
            gradient=gradient,
            output=output,
            key=self.share(call.key, num_heads),
            value=self.share(call.value, num_heads),
            scale=self.backward_scale(call),
            allowed=self.backward_allowed(call),
        )
        weights = self.recomputed(steps)
        logits = self.logit_gradient(steps, weights, self.weight_gradient(steps))
        scores = logits * self.slope(steps)
        query, key = self.query_gradient(steps, scores), self.key_gradient(steps, scores)
        value = self.value_gradient(steps, weights)
        bias = None if call.bias is None else self.bias_gradient(call.bias, logits)
        return query, self.unshare(key, kv_heads), self.unshare(value, kv_heads), bias

    def backward_scale(self, call: Call) -> float:
        """The scale that the gradients of the scores meet."""
        return self.scale(call)

    def backward_allowed(self, call: Call) -> Tensor | None:
        """The admitted keys, once more."""
        return self.allowed(call)

    def recomputed(self, steps: Steps) -> Tensor:
        """The weights, once more."""
        return self.weights(self.logits(steps.call, steps.key), steps.allowed)

    def weight_gradient(self, steps: Steps) -> Tensor:
        """Of the weights."""
        return steps.gradient @ steps.value.mT

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        """What every weight of a row takes off the others ``[B, H, Lq, 1]``."""
        del steps
        return (weights * weight_gradient).sum(dim=-1, keepdim=True)

    def logit_gradient(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        """Through the softmax."""
        return weights * (weight_gradient - self.row_term(steps, weights, weight_gradient))

    def slope(self, steps: Steps) -> Tensor | float:
        """Through the cap."""
        cap = steps.call.softcap
        if cap is None:
            return 1.0
        return 1.0 - torch.tanh(self.scores(steps.call, steps.key) / cap).square()

    def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the query."""
        return scores @ steps.key * steps.scale

    def key_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        """Of the key, for each query head."""
        return scores.mT @ steps.call.query * steps.scale

    def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
        """Of the value, for each query head."""
        return weights.mT @ steps.gradient

    def bias_gradient(self, bias: Tensor, logits: Tensor) -> Tensor:
        """What the pairs that share an element add up to."""
        return logits.sum_to_size(_four(bias)).reshape(bias.shape)

    def unshare(self, heads: Tensor, kv_heads: int) -> Tensor:
        """The query heads that share a key/value head, added up."""
        total: Tensor = heads.unflatten(1, (kv_heads, -1)).sum(dim=2)
        return total


def _four(bias: Tensor) -> tuple[int, ...]:
    return (*[1] * (4 - bias.dim()), *bias.shape)


class _Attention(Function):
    """Hands a call over to the forward and backward of a core."""

    @staticmethod
    def forward(ctx: Any, core: HandWritten, call: Call, *tensors: Tensor | None) -> Tensor:
        """The answer; everything the backward pass needs is kept in the context."""
        output = core.plain(call)
        ctx.core, ctx.call = core, call
        ctx.save_for_backward(*tensors, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients, none for what is no tensor."""
        query, key, value, bias, output = ctx.saved_tensors
        call = ctx.call.replace(query=query, key=key, value=value, bias=bias)
        return (None, None, *ctx.core.backward(call, output, gradients[0]))


class _Linear(Function):
    """A projection with a backward pass of its own."""

    @staticmethod
    def forward(
        ctx: Any, layer: HandWrittenLayer, tokens: Tensor, matrix: Tensor, bias: Tensor | None
    ) -> Tensor:
        """``tokens [B, L, in]`` to ``[B, L, out]``."""
        ctx.layer = layer
        ctx.save_for_backward(tokens, matrix, bias)
        return torch.nn.functional.linear(tokens, matrix, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Of tokens, matrix and bias."""
        tokens, matrix, bias = ctx.saved_tensors
        (gradient,) = gradients
        none = bias is None
        return (
            None,
            gradient @ matrix,
            ctx.layer.matrix_gradient(gradient, tokens),
            None if none else ctx.layer.bias_gradient(gradient),
        )


class HandWrittenLayer(EagerLayer):
    """A layer whose projections have a backward pass of their own."""

    def project(self, tokens: Tensor, name: str) -> Tensor:
        """One of the projections."""
        matrix, bias = getattr(self.weights, name), getattr(self.weights, f"{name}_bias")
        projected: Tensor = _Linear.apply(self, tokens, matrix, bias)  # type: ignore[no-untyped-call]  # torch's own
        return projected

    def matrix_gradient(self, gradient: Tensor, tokens: Tensor) -> Tensor:
        """Added up over items and tokens: ``[out, in]``."""
        return gradient.flatten(0, 1).mT @ tokens.flatten(0, 1)

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        """Added up over items and tokens: ``[out]``."""
        return gradient.sum(dim=(0, 1))
