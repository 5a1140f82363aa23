"""Mistakes in float16 and bfloat16 that the rounding of the inputs does not excuse."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore, EagerLayer
from ._kit import core, layer
from .precision import added_up_in, computed_in, converted

HALVES = ["bfloat16", "float16"]


class FusedCore(EagerCore):
    """Half-precision inputs are computed in float32 and the answer is rounded once."""

    def attend(self, call: Call) -> Answer:
        """Converted on the way in and on the way out."""
        answer = super().attend(computed_in(call, torch.float32))
        return converted(answer, call.query.dtype)


class OnePercentOff(EagerCore):
    """A core whose scale is one per cent too large."""

    def scale(self, call: Call) -> float:
        """The right one times 1.01."""
        return super().scale(call) * 1.01


@core("numerics.scale-error", "numerics.scale", dtypes=HALVES)
class HalfScaleOnePercentOff(OnePercentOff):
    """In half precision the scale is one per cent too large, near what rounding does anyway."""


@core("numerics.scale-error", "numerics.scale", scores="fused", dtypes=HALVES)
class FusedScaleOnePercentOff(FusedCore, OnePercentOff):
    """A fused kernel in half precision uses a scale that is one per cent too large."""


@layer("numerics.scale-error", dtypes=HALVES)
class LayerScaleOnePercentOff(EagerLayer):
    """A layer in half precision uses a scale that is one per cent too large."""

    core = OnePercentOff()


@core("numerics.golden", "numerics.typical-error", dtypes=HALVES)
class SumInHalfPrecision(EagerCore):
    """The weighted sum is added up in the dtype of the inputs, one key after the other."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return added_up_in(weights, value, value.dtype)


@core("numerics.constant-value", "numerics.golden", dtypes=HALVES)
class DenominatorInHalfPrecision(EagerCore):
    """The exponentials are added up in the dtype of the inputs, one key after the other."""

    def softmax(self, logits: Tensor) -> Tensor:
        exponentials = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        total = torch.zeros_like(exponentials[..., :1])
        for key in range(logits.shape[-1]):
            total = total + exponentials[..., key, None]
        return exponentials / total


@core("numerics.golden", "numerics.constant-value", dtypes=["float16"])
class WeightsInBfloat16UnderFloat16(EagerCore):
    """The weights of float16 are rounded to bfloat16, the half precision of another device."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights.bfloat16().to(value.dtype), value)


@core("numerics.golden", "numerics.constant-value", dtypes=["float16"])
class SoftmaxInBfloat16UnderFloat16(EagerCore):
    """The softmax of float16 is computed in bfloat16, the half precision of another device."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.bfloat16(), dim=-1).to(logits.dtype)
