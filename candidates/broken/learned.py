"""Mistakes with learned arguments and their gradients, and with null keys."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from conformance import Semantics

from ..eager import Call, EagerCore
from ..learned import ALL_HEADS, EPSILON, RMS, LearnedCall, LearnedCore, OverAllHeads
from ._kit import core

_SHARED: Final[dict[str, Any]] = {"masks": ["keep", "bias"], "dtypes": ["float32"]}
_FEATURES: Final = ["scale", "gqa", "softcap", "gradients"]
NORMED: Final[dict[str, Any]] = {
    **_SHARED,
    "features": [*_FEATURES, "norm_weight"],
    "semantics": RMS,
}
TOGETHER: Final[dict[str, Any]] = {**NORMED, "semantics": ALL_HEADS}
TEMPERED: Final[dict[str, Any]] = {**_SHARED, "features": [*_FEATURES, "temperature"]}
SLOPED: Final[dict[str, Any]] = {**_SHARED, "features": [*_FEATURES, "alibi_slopes"]}
WEIGHT, TEMPERATURE, SLOPES = "learned.norm-weight", "learned.temperature", "learned.slopes"
NORM, GRADIENT = "qk-norm.golden", "gradients.learned"


@core(WEIGHT, NORM, **NORMED)
class WeightIgnored(LearnedCore):
    """Heads are normalised, and not multiplied by their weights."""

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        return super().prepared(heads, None if weight is None else torch.ones_like(weight))


@core(WEIGHT, NORM, **NORMED)
class KeysByTheQueriesWeight(LearnedCore):
    """Keys are multiplied by the norm weight of the queries."""

    def keys(self, call: LearnedCall) -> Tensor:
        return self.prepared(call.key, call.query_norm_weight)


@core(WEIGHT, NORM, **NORMED)
class OnePlusWeight(LearnedCore):
    """Normalised heads are multiplied by one plus the weight, as Gemma's checkpoints have it."""

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        return super().prepared(heads, None if weight is None else 1.0 + weight)


@core(WEIGHT, NORM, **NORMED)
class WeightBeforeTheNorm(LearnedCore):
    """Heads are multiplied by the weight, and then normalised."""

    link = "https://github.com/vllm-project/tpu-inference/pull/3040"

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        return heads if weight is None else self.normalised(heads * weight)


@core(WEIGHT, NORM, **NORMED)
class KeysWithoutWeight(LearnedCore):
    """Queries alone are multiplied by their weight; that of the keys is lost."""

    def keys(self, call: LearnedCall) -> Tensor:
        return self.normalised(call.key)


@core(NORM, WEIGHT, **TOGETHER)
class EachHeadAlone(OverAllHeads):
    """Each head is normalised by itself where all heads of a token are to be."""

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        normalised = self.normalised(heads)
        if weight is None:
            return normalised
        factors: Tensor = weight.unflatten(-1, (-1, heads.shape[-1]))
        return normalised * factors[:, None]


@core(NORM, **{**NORMED, "features": _FEATURES})
class AllHeadsTogether(OverAllHeads):
    """All heads of a token are normalised together where each is to be by itself."""

    link = "https://github.com/NVIDIA/Megatron-LM/pull/1130"


@core(WEIGHT, NORM, **TOGETHER)
class WeightsOfTheFirstHead(OverAllHeads):
    """Every head is multiplied by the weights of the first one."""

    link = "https://github.com/vllm-project/vllm-xpu-kernels/issues/573"

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            weight = weight[: heads.shape[-1]].repeat(heads.shape[1])
        return super().prepared(heads, weight)


@core(TEMPERATURE, **TEMPERED)
class TemperatureIgnored(LearnedCore):
    """The temperature is taken and forgotten."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        del temperature
        return scores


@core(TEMPERATURE, **TEMPERED)
class TemperatureDivides(LearnedCore):
    """Scores are divided by the temperature, as samplers do."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        return scores / temperature[:, None, None]


@core(TEMPERATURE, **TEMPERED)
class TemperatureExponentiated(LearnedCore):
    """Scores are multiplied by the exponential of the temperature, as if it were a logarithm."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        return scores * temperature.exp()[:, None, None]


@core(TEMPERATURE, **TEMPERED)
class TemperaturesReversed(LearnedCore):
    """Each head takes the temperature of the head counted from the end."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        return scores * temperature.flip(0)[:, None, None]


@core(TEMPERATURE, **TEMPERED)
class TemperatureOfTheFirstHead(LearnedCore):
    """Every head takes the temperature of the first one."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        return scores * temperature[:1, None, None]


@core(TEMPERATURE, **TEMPERED)
class TemperatureBehindTheCap(LearnedCore):
    """The capped scores and their bias are multiplied, not the scores before the cap."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        del temperature
        return scores

    def logits(self, call: Call, key: Tensor) -> Tensor:
        logits = super().logits(call.replace(bias=None), key)
        if isinstance(call, LearnedCall) and call.temperature is not None:
            logits = logits * call.temperature[:, None, None]
        return logits if call.bias is None else logits + call.bias


@core(SLOPES, **SLOPED)
class SlopesOfTheFormula(LearnedCore):
    """Slopes are those of the formula for the heads of the call, whatever was given."""

    link = "https://github.com/flashinfer-ai/flashinfer/pull/5101"

    def slopes(self, given: Tensor) -> Tensor:
        heads = given.shape[-1]
        formula = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / max(heads, 1))
        return formula.to(given)[:, None, None]


@core(SLOPES, **SLOPED)
class SlopesOfTheFirstItem(LearnedCore):
    """Every item takes the slopes of the first."""

    def slopes(self, given: Tensor) -> Tensor:
        return super().slopes(given[0] if given.dim() > 1 else given)


@core(SLOPES, **SLOPED)
class GivenSlopesReversed(LearnedCore):
    """Each head takes the slope of the head counted from the end."""

    def slopes(self, given: Tensor) -> Tensor:
        return super().slopes(given.flip(-1))


@core(SLOPES, **SLOPED)
class SlopesOfTheFirstHead(LearnedCore):
    """Every head takes the slope of the first."""

    def slopes(self, given: Tensor) -> Tensor:
        return super().slopes(given[..., :1])


@core(GRADIENT, "gradients.golden", **SLOPED)
class SlopesDetached(LearnedCore):
    """No gradient reaches the slopes."""

    link = "https://github.com/Dao-AILab/flash-attention/issues/1977"

    def slopes(self, given: Tensor) -> Tensor:
        return super().slopes(given.detach())


@core(GRADIENT, "gradients.golden", **TEMPERED)
class TemperatureDetached(LearnedCore):
    """No gradient reaches the temperatures."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        return super().tempered(scores, temperature.detach())


@core(GRADIENT, "gradients.golden", **NORMED)
class WeightDetached(LearnedCore):
    """No gradient reaches the norm weights."""

    link = "https://github.com/unslothai/unsloth/issues/4533"

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        return super().prepared(heads, None if weight is None else weight.detach())


class _Weighed(torch.autograd.Function):
    """Normalised heads times a weight, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, normalised: Tensor, weight: Tensor, part: str) -> Tensor:
        ctx.save_for_backward(normalised, weight)
        ctx.part = part
        return normalised * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        normalised, weight = ctx.saved_tensors
        terms = gradient * normalised
        if ctx.part == "unweighed":
            return gradient, terms.sum(dim=(0, 1, 2)), None
        kept = terms[:, :1] if ctx.part == "head" else terms[:1]
        return gradient * weight, kept.sum(dim=(0, 1, 2)), None


class _WithOwnBackward(LearnedCore):
    part = ""

    def prepared(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        """Heads whose weight has a backward pass of its own."""
        if weight is None:
            return heads
        mean = heads.square().mean(dim=-1, keepdim=True)
        weighed: Tensor = _Weighed.apply(heads / (mean + EPSILON).sqrt(), weight, self.part)  # type: ignore[no-untyped-call]  # of torch
        return weighed


@core(GRADIENT, "gradients.golden", **NORMED)
class WeightGradientOfTheFirstHead(_WithOwnBackward):
    """The gradient of a weight that all heads share is that of the first head."""

    part = "head"


@core(GRADIENT, "gradients.golden", **NORMED)
class WeightGradientOfTheFirstItem(_WithOwnBackward):
    """The gradient of a weight that all items share is that of the first item."""

    part = "item"


@core(GRADIENT, "gradients.golden", **NORMED)
class WeightForgottenOnTheWayBack(_WithOwnBackward):
    """What flows back to the normalised heads is not multiplied by their weight."""

    link = "https://github.com/karpathy/llm.c/pull/763"
    part = "unweighed"


class _Slopes(torch.autograd.Function):
    """Slopes whose gradient has the wrong sign."""

    @staticmethod
    def forward(_ctx: Any, slopes: Tensor) -> Tensor:
        return slopes.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Any:
        return -gradients[0]


@core(GRADIENT, "gradients.golden", **SLOPED)
class SlopesGradientOfTheOtherSign(LearnedCore):
    """The gradient of the slopes is that of a bias that is added."""

    def slopes(self, given: Tensor) -> Tensor:
        moved: Tensor = _Slopes.apply(given)  # type: ignore[no-untyped-call]  # of torch
        return super().slopes(moved)


@core(TEMPERATURE, **TEMPERED)
class KeysTemperedToo(LearnedCore):
    """Queries and keys are both multiplied by the temperature: scores get its square."""

    def tempered(self, scores: Tensor, temperature: Tensor) -> Tensor:
        return scores * temperature.square()[:, None, None]


NULL: Final[dict[str, Any]] = {
    **_SHARED,
    "features": ["scale", "gqa"],
    "semantics": Semantics(null_key=True),
}


@core("sinks.null-key", **NULL)
class NullKeyForgotten(EagerCore):
    """The weights of a row sum to one, as if no null key joined them."""


@core("sinks.null-key", **NULL)
class OneBehindTheMaximum(EagerCore):
    """A one joins the sum of exponentials that are taken less the largest logit."""

    def softmax(self, logits: Tensor) -> Tensor:
        most = logits.amax(dim=-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)
        exponentials = (logits - most).exp()
        return exponentials / (exponentials.sum(dim=-1, keepdim=True) + 1.0)
