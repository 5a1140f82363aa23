"""Mistakes in a backward pass that only sinks show: the answers beside them are right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._kit import core
from ._prepared import Prepared
from .sinks import SINKS

ALSO = ("gradients.golden", "gradients.options")


class _Beside(Function):
    """Weighted sums beside a sink; a core may recompute weights or give back sinks wrongly."""

    @staticmethod
    def forward(
        ctx: Any, wrong: SinkBackward, logits: Tensor, value: Tensor, sinks: Tensor
    ) -> Tensor:
        """``logits [B, H, Lq, Lk]``, ``value [B, H, Lk, Dv]`` and ``sinks [H]``."""
        column = sinks[:, None, None].expand(*logits.shape[:-1], 1)
        every = torch.cat([logits, column], dim=-1).softmax(-1)
        output = every[..., :-1] @ value
        ctx.wrong = wrong
        ctx.save_for_backward(logits, value, every)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Of logits, values and sinks."""
        logits, value, every = ctx.saved_tensors
        (gradient,) = gradients
        weights = ctx.wrong.recomputed(logits, every[..., :-1])
        change = gradient @ value.mT
        row = (weights * change).sum(-1, keepdim=True)
        of_sinks = ctx.wrong.of_sinks(every[..., -1:], row)
        return None, weights * (change - row), weights.mT @ gradient, of_sinks


class SinkBackward(Prepared):
    """A softmax beside sinks with a backward pass of its own."""

    def weigh(self, logits: Tensor, table: Tensor, sinks: Tensor | None, value: Tensor) -> Tensor:
        if sinks is None:
            return super().weigh(logits, table, sinks, value)
        hidden = logits.masked_fill(~table, -torch.inf)
        answer: Tensor = _Beside.apply(self, hidden, value, sinks)  # type: ignore[no-untyped-call]  # torch's own
        return answer

    def recomputed(self, logits: Tensor, weights: Tensor) -> Tensor:
        """The weights, once more."""
        del logits
        return weights

    def of_sinks(self, share: Tensor, row: Tensor) -> Tensor:
        """The gradient ``[H]`` from the shares of the sinks and the row terms."""
        return (-share * row).sum(dim=(0, 2, 3))


@core("gradients.sinks", *ALSO, **SINKS)
class SinkForgottenBackward(SinkBackward):
    """The backward pass recomputes the weights without the sink in their sum."""

    def recomputed(self, logits: Tensor, weights: Tensor) -> Tensor:
        return logits.softmax(-1).where(weights > 0.0, 0.0)


@core("gradients.sinks", *ALSO, **SINKS)
class SinkGradientZero(SinkBackward):
    """The sinks get a gradient of zero."""

    def of_sinks(self, share: Tensor, row: Tensor) -> Tensor:
        return torch.zeros_like((share * row).sum(dim=(0, 2, 3)))


@core("gradients.sinks", *ALSO, **SINKS)
class SinkGradientOfTheFirstItem(SinkBackward):
    """The sinks learn from the first item of a batch alone."""

    def of_sinks(self, share: Tensor, row: Tensor) -> Tensor:
        return super().of_sinks(share[:1], row[:1])
