"""Mistakes in how precisely the right thing is computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core

BOTH = ["float32", "float64"]


@core("numerics.scale", "numerics.golden")
class ScaleOnePercentOff(EagerCore):
    """The scale is one per cent too large, as a constant that was typed in is."""

    def scale(self, call: Call) -> float:
        return super().scale(call) * 1.01


@core("numerics.scale", "numerics.golden")
class ScaleFromFastInverseRoot(EagerCore):
    """The scale comes from an approximate inverse root that is off by one in a thousand."""

    def scale(self, call: Call) -> float:
        return super().scale(call) * 1.001


@core("numerics.golden", "numerics.constant-value")
class SoftmaxInBfloat16(EagerCore):
    """The softmax is computed in bfloat16 whatever the dtype of the inputs."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.bfloat16(), dim=-1).to(logits.dtype)


@core("numerics.golden")
class ScoresInFloat16(EagerCore):
    """The scores are rounded to float16 before the softmax."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        scores = super().scores(call, key)
        return scores.clamp(-65504.0, 65504.0).half().to(scores.dtype)


@core("numerics.golden", "numerics.constant-value")
class WeightsInBfloat16(EagerCore):
    """The weights are rounded to bfloat16 before they meet the values."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights.bfloat16().to(value.dtype), value)


@core("numerics.golden")
class ScoresFromShortOperands(EagerCore):
    """Queries and keys lose thirteen bits before the dot product, as in TF32, without saying so."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call.replace(query=shortened(call.query)), shortened(key))


def shortened(tensor: Tensor) -> Tensor:
    """Cut float32 numbers to ten bits behind the leading one."""
    bits = tensor.float().contiguous().view(torch.int32) & ~0x1FFF
    return bits.view(torch.float32).to(tensor.dtype)


@core("numerics.golden")
class RoughExponentials(EagerCore):
    """The exponentials come from a rough polynomial that is off by up to one in a thousand."""

    def softmax(self, logits: Tensor) -> Tensor:
        logits = logits - logits.amax(dim=-1, keepdim=True)
        weights = torch.exp(logits) * (1 + 1e-3 * torch.sin(3 * logits.clamp_min(-100.0)))
        return weights / weights.sum(dim=-1, keepdim=True)


@core("numerics.constant-value", "numerics.golden", "numerics.convex", dtypes=BOTH)
class EpsilonInTheDenominator(EagerCore):
    """A small number is added to the sum of exponentials: every answer comes out too small."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        return weights / (weights.sum(dim=-1, keepdim=True) + 1e-5)


@core("numerics.golden", "numerics.scale", dtypes=["float64"])
class Float32InTheMiddle(EagerCore):
    """Inputs in float64 are computed in float32 and converted back."""

    def attend(self, call: Call) -> Answer:
        single = call.replace(
            query=call.query.float(),
            key=call.key.float(),
            value=call.value.float(),
            bias=None if call.bias is None else call.bias.float(),
        )
        answer = super().attend(single)
        if isinstance(answer, tuple):
            return answer[0].double(), answer[1].double()
        return answer.double()


@core("numerics.scale", "numerics.golden", dtypes=["float64"])
class ScaleInFloat32(EagerCore):
    """The scale is kept as a float32 number, too coarse for inputs in float64."""

    def scale(self, call: Call) -> float:
        return float(torch.tensor(super().scale(call), dtype=torch.float32))


@core("numerics.golden", "numerics.large-logits")
class LogOfWeightsRounded(EagerCore):
    """The weights come from log-probabilities that were stored in bfloat16."""

    def softmax(self, logits: Tensor) -> Tensor:
        logarithms = torch.log_softmax(logits, dim=-1)
        return torch.exp(logarithms.bfloat16().to(logits.dtype))


@core("numerics.golden", "numerics.constant-value")
class SmallWeightsCutOff(EagerCore):
    """Weights below one in ten thousand are cut off and the rest is not normalised again."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        return weights.masked_fill(weights < math.exp(-9.2), 0.0)
