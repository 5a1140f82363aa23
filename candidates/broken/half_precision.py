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


@core("numerics.accumulation", "numerics.constant-value", dtypes=HALVES)
class SumInHalfPrecision(EagerCore):
    """The weighted sum is added up in the dtype of the inputs, one key after the other."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return added_up_in(weights, value, value.dtype)


@core("numerics.accumulation", "numerics.any-length", dtypes=HALVES)
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


@core("mask.empty-row", masks=["keep"], empty_rows="mean-of-all", dtypes=["float16"])
class LowestAddedTwice(EagerCore):
    """Mask and causality each add the lowest number: their sum is minus infinity, the row NaN."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        del allowed
        for table in self.given:
            logits = logits + torch.zeros_like(logits).masked_fill(
                ~table, torch.finfo(logits.dtype).min
            )
        return self.softmax(logits)

    def attend(self, call: Call) -> Answer:
        self.given = list(self.tables(call))
        return super().attend(call)


@core("mask.golden", masks=["keep"], causal=None, empty_rows="any", dtypes=["float16"])
class FillOverflowsHalf(EagerCore):
    """What is not kept is multiplied by -1e9, minus infinity in float16: kept keys become NaN."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return self.softmax(logits)
        fill = torch.tensor(-1e9).to(logits.dtype)
        return self.softmax(logits + (~allowed).to(logits.dtype) * fill)


@core("numerics.golden", "numerics.large-logits", dtypes=["float16"])
class ExponentialsOverflowHalf(EagerCore):
    """Without subtracting the maximum, float16 exponentials overflow at a logit of twelve."""

    def softmax(self, logits: Tensor) -> Tensor:
        exponentials = torch.exp(logits)
        return exponentials / exponentials.sum(dim=-1, keepdim=True)


@core("numerics.golden", "numerics.typical-error", dtypes=HALVES)
class ValuesOfEightBits(EagerCore):
    """The values are stored with eight bits, three of them for the fraction."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value.to(torch.float8_e4m3fn).to(value.dtype))


@core("mask.single-key", masks=["keep"], empty_rows="any", dtypes=["bfloat16"])
class HalfFillInBfloat16(EagerCore):
    """The fill of float16, -65,504, is used in bfloat16, whose logits may lie below it."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        return self.softmax(logits if allowed is None else logits.masked_fill(~allowed, -65504.0))


@core("numerics.lifted-logits", features=["scale"], scores="fused", dtypes=HALVES)
class LogSumExpsInHalfPrecision(EagerCore):
    """Two halves of the keys are merged by log-sum-exps that were kept in the inputs' dtype."""

    def attend(self, call: Call) -> Answer:
        made = computed_in(call, torch.float32)
        logits = self.logits(made, self.share(made.key, made.query.shape[1]))
        allowed = self.allowed(made)
        if allowed is not None or logits.shape[-1] == 1:
            return converted(super().attend(made), call.query.dtype)
        value = self.share(made.value, made.query.shape[1])
        middle = logits.shape[-1] // 2
        outputs, sizes = [], []
        for keys in (slice(0, middle), slice(middle, None)):
            part = logits[..., keys]
            outputs.append(part.softmax(dim=-1) @ value[..., keys, :])
            kept = part.logsumexp(dim=-1, keepdim=True).to(call.query.dtype)
            sizes.append(kept.float())
        share = (sizes[0] - sizes[1]).sigmoid()
        return (share * outputs[0] + (1.0 - share) * outputs[1]).to(call.query.dtype)


class CappedCore(FusedCore):
    """A core in float32 whose softcap is a step of its own."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        """The capped scores plus the bias."""
        if call.softcap is None:
            return super().logits(call, key)
        scores = self.scores(call, key) / call.softcap
        capped = call.softcap * self.bend(scores)
        return capped if call.bias is None else self.add_bias(capped, call.bias)

    def bend(self, scores: Tensor) -> Tensor:
        """The hyperbolic tangent."""
        return scores.tanh()


@core("numerics.lifted-logits", features=["softcap"], scores="fused", dtypes=HALVES)
class CapApproximated(CappedCore):
    """The tanh of the softcap errs by up to 2^-11, as hardware's approximation does."""

    def bend(self, scores: Tensor) -> Tensor:
        return scores.tanh() * (1.0 + 2.0**-11 * torch.sin(97.0 * scores))


@core("numerics.lifted-logits", features=["softcap"], scores="fused", dtypes=HALVES)
class CapInHalfPrecision(CappedCore):
    """The softcap is computed in float32, but its tanh is kept in bfloat16."""

    def bend(self, scores: Tensor) -> Tensor:
        return scores.tanh().to(torch.bfloat16).float()
