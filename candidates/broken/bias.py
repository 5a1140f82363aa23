"""Mistakes in what an additive mask does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
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


@core("mask.bias-far-below")
class MaximumFlooredAtMinusTenThousand(EagerCore):
    """The maximum of a row is no lower than -1e4, and its sum no smaller than 1e-6: burn#4697."""

    def softmax(self, logits: Tensor) -> Tensor:
        if not logits.shape[-1]:
            return logits
        terms = (logits - logits.amax(dim=-1, keepdim=True).clamp_min(-1e4)).exp()
        return terms / terms.sum(dim=-1, keepdim=True).clamp_min(1e-6)


@core("mask.bias-far-below", masks=["bias"])
class FarBiasTakenForMask(EagerCore):
    """A bias of -1e4 or less counts as minus infinity: a row of such biases has no key."""

    def tables(self, call: Call) -> Iterator[Tensor]:
        yield from super().tables(call)
        if call.bias is not None:
            yield call.bias > -1e4  # noqa: PLR2004 (the number of the docstring)


@core("mask.bias-lowest", masks=["bias"])
class LowestBiasOverflows(EagerCore):
    """Logits are taken to the base 2: the lowest finite bias becomes minus infinity, and NaN."""

    def softmax(self, logits: Tensor) -> Tensor:
        halves = logits * (1.0 / math.log(2.0))
        if not logits.shape[-1]:
            return logits
        terms = torch.exp2(halves - halves.amax(dim=-1, keepdim=True))
        return terms / terms.sum(dim=-1, keepdim=True)
