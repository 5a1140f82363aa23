"""Mistakes in what an additive mask does."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from ..eager import Call, EagerCore
from ._kit import core


@core("mask.bias", "mask.bias-counts")
class BiasScaled(EagerCore):
    """The bias is added before the scaling and so is scaled too."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        if call.bias is None:
            return super().logits(call, key)
        return super().logits(call.replace(bias=call.bias * self.scale(call)), key)


@core("mask.bias", "mask.bias-counts")
class BiasIgnored(EagerCore):
    """The finite values of the bias are not used, only its minus infinities."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        return super().logits(call.replace(bias=None), key)


@core("mask.bias", "mask.bias-counts")
class BiasSubtracted(EagerCore):
    """The bias is subtracted from the scores."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores - bias.masked_fill(bias.isneginf(), 0.0)


@core("mask.bias", "mask.bias-counts", "mask.golden")
class BiasMultiplied(EagerCore):
    """The scores are multiplied by the bias."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores * bias.masked_fill(bias.isneginf(), 0.0)


@core("mask.bias", "mask.golden")
class BiasTakenForBoolean(EagerCore):
    """The bias is cast to a boolean mask: what is not zero is ignored, whatever its size."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        drop = None if call.bias is None else call.bias != 0
        return super().tables(call.replace(bias=None, drop=drop))

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        del bias
        return scores


@core("mask.bias-counts", "mask.bias")
class BiasInBinaryUnits(EagerCore):
    """The scores are rescaled for powers of two and the bias is not: it counts too little."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores + bias * math.log(2.0)


@core("mask.bias-counts", "mask.bias")
class BiasClamped(EagerCore):
    """A bias above zero is clamped to zero, as if it could only take away."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores + bias.clamp_max(0.0)


@core("mask.bias")
class BiasRounded(EagerCore):
    """The bias is stored in bfloat16 before it is added."""

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores + bias.bfloat16().to(scores.dtype)
