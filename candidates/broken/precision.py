"""Mistakes in how precisely the right thing is computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore, EagerLayer
from ._kit import core, layer

BOTH = ["float32", "float64"]
# From this many keys and channels on, kernels work in blocks.
BLOCK = 16


def computed_in(call: Call, working: torch.dtype) -> Call:
    """The same call with its numbers converted."""
    return call.replace(
        query=call.query.to(working),
        key=call.key.to(working),
        value=call.value.to(working),
        bias=None if call.bias is None else call.bias.to(working),
    )


def converted(answer: Answer, working: torch.dtype) -> Answer:
    """Output and weights in another dtype."""
    if isinstance(answer, tuple):
        return answer[0].to(working), answer[1].to(working)
    return answer.to(working)


def added_up_in(weights: Tensor, value: Tensor, working: torch.dtype) -> Tensor:
    """The weighted sum, one key after the other, each partial sum rounded to ``working``."""
    total = torch.zeros(*weights.shape[:-1], value.shape[-1], dtype=working)
    for key in range(value.shape[-2]):
        product = weights[..., key, None].float() * value[..., key, None, :].float()
        total = (total.float() + product).to(working)
    return total.to(value.dtype)


@core("numerics.scale", "numerics.golden", "numerics.scale-error")
class ScaleOnePercentOff(EagerCore):
    """The scale is one per cent too large, as a constant that was typed in is."""

    def scale(self, call: Call) -> float:
        return super().scale(call) * 1.01


@core("numerics.scale", "numerics.golden", "numerics.scale-error")
class ScaleFromFastInverseRoot(EagerCore):
    """The scale comes from an approximate inverse root that is off by one in a thousand."""

    def scale(self, call: Call) -> float:
        return super().scale(call) * 1.001


@core("numerics.golden", "numerics.constant-value", "numerics.typical-error", "numerics.near-ties")
class SoftmaxInBfloat16(EagerCore):
    """The softmax is computed in bfloat16 whatever the dtype of the inputs."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.bfloat16(), dim=-1).to(logits.dtype)


@core("numerics.golden", "numerics.constant-value", "numerics.typical-error", "numerics.near-ties")
class SoftmaxInFloat16(EagerCore):
    """The softmax is computed in float16, in which small weights vanish."""

    def softmax(self, logits: Tensor) -> Tensor:
        finite = logits.clamp_min(-65504.0).where(logits.isfinite(), logits)
        return torch.softmax(finite.half(), dim=-1).to(logits.dtype)


@core("numerics.golden", "numerics.near-ties", "numerics.typical-error")
class ScoresInFloat16(EagerCore):
    """The scores are rounded to float16 before the softmax."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        scores = super().scores(call, key)
        return scores.clamp(-65504.0, 65504.0).half().to(scores.dtype)


@core("numerics.golden", "numerics.constant-value", "numerics.typical-error", "numerics.near-ties")
class WeightsInBfloat16(EagerCore):
    """The weights are rounded to bfloat16 before they meet the values."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights.bfloat16().to(value.dtype), value)


@core("numerics.golden", "numerics.constant-value", "numerics.typical-error", "numerics.near-ties")
class ExponentialsInBfloat16(EagerCore):
    """The exponentials are rounded to bfloat16 for the product only, not for their sum."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        return weights.bfloat16().to(logits.dtype) / weights.sum(dim=-1, keepdim=True)


@core("numerics.golden", "numerics.typical-error")
class ScoresFromShortOperands(EagerCore):
    """Queries and keys lose thirteen bits before the dot product, as in TF32, without saying so."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call.replace(query=shortened(call.query)), shortened(key))


def shortened(tensor: Tensor) -> Tensor:
    """Cut float32 numbers to ten bits behind the leading one."""
    bits = tensor.float().contiguous().view(torch.int32) & ~0x1FFF
    return bits.view(torch.float32).to(tensor.dtype)


@core("numerics.golden", "numerics.value-linear", "numerics.typical-error", "numerics.near-ties")
class ProductsInTensorFloat32(EagerCore):
    """All operands of both products are rounded to TensorFloat-32 although that is not declared."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call.replace(query=rounded(call.query)), rounded(key))

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(rounded(weights), rounded(value))


def rounded(tensor: Tensor) -> Tensor:
    """Round float32 numbers to ten bits behind the leading one."""
    bits = tensor.float().contiguous().view(torch.int32) + 0x1000
    return shortened(bits.view(torch.float32)).to(tensor.dtype)


@core("numerics.golden", "numerics.typical-error")
class RoughExponentials(EagerCore):
    """The exponentials come from a rough polynomial that is off by up to one in a thousand."""

    def softmax(self, logits: Tensor) -> Tensor:
        logits = logits - logits.amax(dim=-1, keepdim=True)
        weights = torch.exp(logits) * (1 + 1e-3 * torch.sin(3 * logits.clamp_min(-100.0)))
        return weights / weights.sum(dim=-1, keepdim=True)


@core(
    "numerics.constant-value",
    "numerics.golden",
    "numerics.convex",
    "numerics.typical-error",
    dtypes=BOTH,
)
class EpsilonInTheDenominator(EagerCore):
    """A small number is added to the sum of exponentials: every answer comes out too small."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        return weights / (weights.sum(dim=-1, keepdim=True) + 1e-5)


@core(
    "numerics.constant-value",
    "numerics.golden",
    "numerics.convex",
    "numerics.typical-error",
    "numerics.near-ties",
    dtypes=BOTH,
)
class LargeEpsilonInTheDenominator(EagerCore):
    """A thousandth is added to the sum of exponentials, as large as a key far from the maximum."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        return weights / (weights.sum(dim=-1, keepdim=True) + 1e-3)


@core("numerics.golden", "numerics.constant-value", "numerics.typical-error")
class SumInFloat16(EagerCore):
    """The weighted sum is added up in float16, one key after the other."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return added_up_in(weights, value, torch.float16)


@core("numerics.golden", "numerics.constant-value", "numerics.typical-error", "numerics.near-ties")
class SumInBfloat16(EagerCore):
    """The weighted sum is added up in bfloat16, one key after the other."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return added_up_in(weights, value, torch.bfloat16)


@core("numerics.golden", "numerics.typical-error")
class AnswerThroughBfloat16(EagerCore):
    """The answer passes through a bfloat16 buffer on its way out."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value).bfloat16().to(value.dtype)


def rounded_bits(tensor: Tensor, lost: int) -> Tensor:
    """Float32 numbers without their last bits, rounded to nearest."""
    bits = tensor.contiguous().view(torch.int32) + (1 << (lost - 1))
    return (bits & -(1 << lost)).view(tensor.dtype)


@core("numerics.near-ties", "numerics.golden")
class ScoresOfElevenBits(EagerCore):
    """The scores keep eleven bits: large ones that nearly tie become one."""

    lost = 13

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return rounded_bits(super().scores(call, key), self.lost)


@core("numerics.typical-error")
class LongRowsOfSeventeenBits(EagerCore):
    """Blocks of sixteen queries, keys and channels keep seventeen bits of every number."""

    lost = 7

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().mix(weights, value)
        if min(*weights.shape[-2:], value.shape[-1]) < BLOCK:
            return output
        return rounded_bits(output, self.lost)


@core(
    "numerics.golden",
    "numerics.scale",
    "numerics.typical-error",
    "numerics.near-ties",
    dtypes=["float64"],
)
class Float32InTheMiddle(EagerCore):
    """Inputs in float64 are computed in float32 and converted back."""

    def attend(self, call: Call) -> Answer:
        return converted(super().attend(computed_in(call, torch.float32)), torch.float64)


class SingleCore(EagerCore):
    """A core that computes in float32 whatever it is given."""

    def attend(self, call: Call) -> Answer:
        """Converted on the way in and on the way out."""
        answer = super().attend(computed_in(call, torch.float32))
        return converted(answer, call.query.dtype)


@layer(
    "numerics.golden",
    "numerics.scale",
    "numerics.typical-error",
    "numerics.near-ties",
    dtypes=["float64"],
)
class LayerWithFloat32Core(EagerLayer):
    """A layer in float64 projects in float64 but attends in float32."""

    core = SingleCore()


@core("numerics.scale", "numerics.golden", "numerics.scale-error", dtypes=["float64"])
class ScaleInFloat32(EagerCore):
    """The scale is kept as a float32 number, too coarse for inputs in float64."""

    def scale(self, call: Call) -> float:
        return float(torch.tensor(super().scale(call), dtype=torch.float32))


@core("numerics.golden", "numerics.large-logits", "numerics.typical-error")
class LogOfWeightsRounded(EagerCore):
    """The weights come from log-probabilities that were stored in bfloat16."""

    def softmax(self, logits: Tensor) -> Tensor:
        logarithms = torch.log_softmax(logits, dim=-1)
        return torch.exp(logarithms.bfloat16().to(logits.dtype))


@core("numerics.golden", "numerics.constant-value", "numerics.typical-error")
class SmallWeightsCutOff(EagerCore):
    """Weights below one in ten thousand are cut off and the rest is not normalised again."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        return weights.masked_fill(weights < math.exp(-9.2), 0.0)
