"""Mistakes in how a backward pass is called: whose gradients it finds, keeps and overwrites."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import Call, EagerCore
from ._backward import HandWritten, Steps
from ._kit import core


@core("gradients.accumulate")
class GradientsOverwritten(HandWritten):
    """The backward pass drops the gradients that are there before it adds its own."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        for leaf in (call.query, call.key, call.value):
            leaf.grad = None
        return super().backward(call, output, gradient)


@core("gradients.strided")
class OutputGradientTakenForContiguous(HandWritten):
    """The gradient of the answer is read as if it lay row after row in memory."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        held = gradient.untyped_storage().nbytes() // gradient.element_size()
        storage = gradient.as_strided((held,), (1,), 0)[gradient.storage_offset() :]
        wanted = gradient.numel()
        flat = storage[torch.arange(wanted) % max(len(storage), 1)] if wanted else storage[:0]
        return super().backward(call, output, flat.reshape(gradient.shape))


@core("gradients.interleaved")
class StateOfTheLastCall(HandWritten):
    """The backward pass uses the query of the last call, not of its own."""

    last: Tensor | None = None

    def plain(self, call: Call) -> Tensor:
        self.last = call.query.detach().clone()
        return super().plain(call)

    def key_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        query = steps.call.query
        known = self.last is not None and self.last.shape == query.shape
        return scores.mT @ (self.last if known else query) * steps.scale  # type: ignore[operator]  # not None, as was just seen


@core("gradients.alone")
class NeedsTheGradientOfTheQuery(HandWritten):
    """Keys get a gradient only where the query requires one, too."""

    def backward(self, call: Call, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias = super().backward(call, output, gradient)
        return query, key if call.query.requires_grad else None, value, bias


@core("gradients.repeated")
class BuffersOverwrittenBackward(HandWritten):
    """The backward pass overwrites the answer that it has kept, and needs it the next time."""

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        del weights, weight_gradient
        term = (steps.gradient * steps.output).sum(dim=-1, keepdim=True)
        steps.output.data.zero_()
        return term


@core("gradients.inputs-unchanged")
class QueryScaledInPlaceBackward(HandWritten):
    """The backward pass multiplies the query by the scale in place."""

    def key_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
        steps.call.query.data.mul_(steps.scale)
        return scores.mT @ steps.call.query


@core("gradients.empty-row-finite", features=["scale"])
class EmptyRowsPoisonGradients(EagerCore):
    """A row of nothing but minus infinity is mended behind the softmax, which gives NaN back."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return self.softmax(logits)
        hidden = torch.zeros_like(logits).masked_fill(~allowed, -math.inf)
        return self.softmax(logits + hidden).nan_to_num()


@core("gradients.bias")
class BiasGradientOfTheFirstItem(HandWritten):
    """An additive mask that all items share gets the gradient of the first item alone."""

    def bias_gradient(self, bias: Tensor, logits: Tensor) -> Tensor:
        first = torch.zeros_like(logits)
        first[:1] = logits[:1]
        return super().bias_gradient(bias, first)


@core("gradients.check", position="relative", dtypes=["float64"], empty_rows="any")
class SlopesOfNothing(HandWritten):
    """A kernel with positions of its own gives keys no gradient through the row term."""

    def row_term(self, steps: Steps, weights: Tensor, weight_gradient: Tensor) -> Tensor:
        del steps, weight_gradient
        return torch.zeros_like(weights[..., :1])


@core("gradients.double-backward", features=["scale", "double_backward"])
class SecondGradientsCut(HandWritten):
    """The weights that the backward pass recomputes have no history: second gradients miss it."""

    def recomputed(self, steps: Steps) -> Tensor:
        return super().recomputed(steps).detach()
