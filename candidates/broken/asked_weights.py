"""Mistakes on the path that is taken when the weights are asked for."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..eager import Answer, Call, EagerCore
from ._kit import core


class Aside(EagerCore):
    """A core whose answer differs when the weights are returned too."""

    def attend(self, call: Call) -> Answer:
        """Answer, and change the pair."""
        answer = super().attend(call)
        if not isinstance(answer, tuple):
            return answer
        return self.changed(answer[0], answer[1], call)

    def changed(self, output: Tensor, weights: Tensor, call: Call) -> Answer:
        """What is returned in place of the output and the weights."""
        raise NotImplementedError


@core("shape.weights-aside")
class NoOutputWithWeights(Aside):
    """When the weights are asked for, the output that comes with them is left empty."""

    def changed(self, output: Tensor, weights: Tensor, call: Call) -> Answer:
        del call
        return torch.zeros_like(output), weights


@core("shape.weights-aside")
class DropoutWithWeights(Aside):
    """The path that returns the weights applies dropout to the output, whatever the mode is."""

    def changed(self, output: Tensor, weights: Tensor, call: Call) -> Answer:
        del call
        return functional.dropout(output, 0.1, training=True), weights


@core("shape.weights-aside", masks=["keep"], causal=None)
class EmptyHeadIsNanWithWeights(Aside):
    """One row without keys turns the whole output into NaN, but only with the weights."""

    def changed(self, output: Tensor, weights: Tensor, call: Call) -> Answer:
        if call.keep is not None and not bool(call.keep.any(dim=-1).all()):
            output = output * math.nan
        return output, weights


@core("shape.weights")
class WeightsWithoutBias(Aside):
    """The returned weights leave out the bias that the output respects."""

    def changed(self, output: Tensor, weights: Tensor, call: Call) -> Answer:
        if call.bias is None:
            return output, weights
        hidden = torch.zeros_like(call.bias).masked_fill(call.bias.isneginf(), -math.inf)
        plain = EagerCore.attend(self, call.replace(bias=hidden))
        return output, plain[1]


@core("shape.weights")
class WeightsOfReversedHeads(Aside):
    """The returned weights come with their heads in reverse order."""

    def changed(self, output: Tensor, weights: Tensor, call: Call) -> Answer:
        del call
        return output, weights.flip(1)
