"""Partial answers over spans of keys: how they are kept, seeded and merged."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from ...eager import Call, EagerCore
from .._kit import core
from ._steps import SERVING, WINDOWED, Joined, Split, one_query

SINKING: Final[dict[str, Any]] = {
    **SERVING,
    "masks": ["keep"],
    "features": ["scale", "gqa", "sinks", "kv_cache"],
}


class CacheApart(Split):
    """The cached keys are one span, the new ones the other."""

    def spans(self, call: Joined) -> list[slice]:
        if not call.past:
            return [slice(None)]
        return [slice(0, call.past), slice(call.past, None)]


@core("mask.golden", "mask.causal-combined", **SERVING)
class PartialsMergedInAnotherBase(CacheApart):
    """Log-sum-exps of base two are merged as if they were natural ones."""

    link = "https://github.com/sgl-project/sglang/issues/40903"

    def shares(self, call: Joined, totals: Tensor) -> Tensor:
        return super().shares(call, totals / math.log(2))


@core("mask.empty-row-options", **SERVING)
class MergedEmptyPartialsNaN(CacheApart):
    """Merging two partial answers that saw no key subtracts minus infinity from itself: NaN."""

    link = "https://github.com/flashinfer-ai/flashinfer/issues/4051"

    def shares(self, call: Joined, totals: Tensor) -> Tensor:
        if totals.shape[-1] == 1:
            return super().shares(call, totals)
        return (totals - totals.amax(dim=-1, keepdim=True)).exp() / (
            totals - totals.amax(dim=-1, keepdim=True)
        ).exp().sum(dim=-1, keepdim=True)


@core("window.golden", **WINDOWED)
class UnusedSplitsMergedAsZero(Split):
    """Splits that the window leaves without a key are merged with what the scratch holds: zeros.

    Only steps of decoding are split, into four spans.
    """

    link = "https://github.com/vllm-project/vllm/pull/47188"

    def spans(self, call: Joined) -> list[slice]:
        if not one_query(call):
            return [slice(None)]
        size = max(math.ceil(call.key_length / 4), 1)
        return [slice(start, start + size) for start in range(0, max(call.key_length, 1), size)]

    def shares(self, call: Joined, totals: Tensor) -> Tensor:
        if call.window is not None and one_query(call):
            totals = totals.masked_fill(totals == -math.inf, 0.0)
        return super().shares(call, totals)


class TwoSplits(Split):
    """Two spans of keys, of equal size."""

    def spans(self, call: Joined) -> list[slice]:
        middle = call.key_length // 2
        return [slice(0, middle), slice(middle, None)]


@core("sinks.golden", "mask.golden", **SINKING)
class SinkCountedInTwoSplits(TwoSplits):
    """Where the first split sees no key, both it and the next one count the sink."""

    link = "https://github.com/ROCm/rocm-libraries/issues/12227"

    def times(self, totals: Tensor) -> Tensor:
        first, rest = totals[..., :1] == -math.inf, totals[..., 1:] > -math.inf
        return 1.0 + (first & rest.any(dim=-1, keepdim=True)).to(totals.dtype)


@core("sinks.golden", "sinks.large", **SINKING)
class SplitSinkScaledLikeScores(TwoSplits):
    """When one query is decoded in splits, the sink is multiplied by the scale of the scores."""

    link = "https://github.com/ROCm/rocm-libraries/issues/12227"

    def sink(self, call: Joined, sinks: Tensor) -> Tensor:
        return sinks * self.scale(call) if one_query(call) else sinks


@core("sinks.golden", "mask.golden", **{**SINKING, "features": [*SINKING["features"], "softcap"]})
class SinkScaledUnderSoftcap(TwoSplits):
    """With a softcap, the sink is put into the softmax in the units of uncapped products."""

    link = "https://github.com/ROCm/rocm-libraries/pull/12229"

    def sink(self, call: Joined, sinks: Tensor) -> Tensor:
        return sinks if call.softcap is None else sinks * self.scale(call)


@core("sinks.golden", "mask.golden", **SINKING)
class SinkDroppedWithCache(Split):
    """The kernel that reads a cache has no pointer to the sinks and leaves them out."""

    link = "https://github.com/kekzl/imp/issues/1345"

    def shares(self, call: Joined, totals: Tensor) -> Tensor:
        if call.past:
            call = Joined(**{**vars(call), "sinks": None})
        return super().shares(call, totals)


@core(
    "gradients.sinks",
    "gradients.golden",
    **{**SINKING, "without": [], "features": ["scale", "gqa", "sinks"]},
)
class SinkWithoutGradient(Split):
    """The backward pass knows nothing of learned sinks: their gradient is zero."""

    link = "https://github.com/Dao-AILab/flash-attention/issues/1973"

    def sink(self, call: Joined, sinks: Tensor) -> Tensor:
        del call
        return sinks.detach() + 0.0 * sinks


@core("numerics.any-length", masks=["keep"], features=["scale", "gqa"], without=["gradients"])
class MaximumStuckAtZero(Split):
    """Where the first tile hides all keys of a row, its running maximum becomes zero, and stays so.

    Tiles of 128 keys go from the last to the first; logits far below zero weigh nothing then.
    """

    link = "https://github.com/Dao-AILab/flash-attention/issues/2082"
    tile = 128

    def merge(self, call: Joined, partials: list[tuple[Tensor, Tensor]]) -> Tensor:
        raise NotImplementedError

    def attend(self, call: Call) -> Tensor:
        self.check(call)
        num_heads = call.query.shape[1]
        key, value = self.share(call.key, num_heads), self.share(call.value, num_heads)
        allowed, logits = self.allowed(call), self.logits(call, key)
        if allowed is not None:
            logits = self.mask(logits, allowed)
        rows = (*logits.shape[:-1], 1)
        largest, total = logits.new_full(rows, -math.inf), logits.new_zeros(rows)
        output = logits.new_zeros(*logits.shape[:-1], value.shape[-1])
        spans = range(0, call.key_length, self.tile)
        for start in reversed(spans):
            block = logits[..., start : start + self.tile]
            higher = torch.maximum(largest, block.amax(dim=-1, keepdim=True))
            higher = higher.masked_fill(higher == -math.inf, 0.0)
            weights, shrink = (block - higher).exp(), (largest - higher).exp()
            total = total * shrink + weights.sum(dim=-1, keepdim=True)
            output = output * shrink + weights @ value[:, :, start : start + self.tile]
            largest = higher
        return output / total.masked_fill(total == 0, 1.0)


@core("numerics.large-logits", "mask.single-key", **SERVING)
class SentinelAboveTheLogits(EagerCore):
    """The running maximum starts at a finite number, -50000: a row of smaller logits is zeros."""

    link = "https://github.com/flashinfer-ai/flashinfer/issues/4267"

    def softmax(self, logits: Tensor) -> Tensor:
        if not logits.shape[-1]:
            return super().softmax(logits)
        largest = logits.amax(dim=-1, keepdim=True)
        weights = (logits - largest.clamp(min=-5e4)).exp()
        total = weights.sum(dim=-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)


@core(
    "mask.single-key",
    "mask.causal-first-key",
    masks=["keep", "bias"],
    features=["scale", "gqa"],
    without=["gradients"],
    dtypes=["float16", "bfloat16"],
)
class PartialSumsInHalfPrecision(Split):
    """The sums and maxima of partial answers are kept in the dtype of the inputs."""

    link = "https://github.com/pytorch/pytorch/pull/174945"

    def attend(self, call: Call) -> Tensor:
        names = ("query", "key", "value", "bias")
        given = {name: getattr(call, name) for name in names}
        wide = {name: one.float() for name, one in given.items() if one is not None}
        return super().attend(call.replace(**wide)).to(call.query.dtype)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        self.kept = query.dtype
        answer = super().__call__(query, key, value, **options)
        assert isinstance(answer, Tensor)  # noqa: S101 (no weights are asked for)
        return answer

    def partial(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        largest = logits.amax(dim=-1, keepdim=True).to(self.kept)
        anchor = largest.masked_fill(largest == -math.inf, 0.0)
        weights = (logits - anchor).exp()
        total = weights.sum(dim=-1, keepdim=True).to(self.kept)
        output = weights @ value / total.masked_fill(total == 0, 1.0)
        return output, anchor.float() + total.float().log()


@core("mask.golden", "mask.single-key", **SERVING)
class ValueTilesInOnePlace(EagerCore):
    """Values are mixed in tiles of 64 channels, and each is written to the place of the first."""

    link = "https://github.com/fla-org/flash-linear-attention/pull/1031"

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        mixed = super().mix(weights, value)
        output = torch.zeros_like(mixed)
        for start in range(0, mixed.shape[-1], 64):
            tile = mixed[..., start : start + 64]
            output[..., : tile.shape[-1]] = tile
        return output


@core("numerics.scale", "mask.golden", masks=["keep"], features=["scale", "gqa", "softcap"])
class GivenScaleInAnotherBase(EagerCore):
    """Powers of two want logits times log2(e), which only the default scale contains."""

    link = "https://github.com/iree-org/iree-turbine/pull/480"

    def scale(self, call: Call) -> float:
        return super().scale(call) * (1.0 if call.scale is None else math.log(2))


@core("mask.bias", "numerics.options", masks=["bias"], features=["scale"], causal=None)
class BiasInAnotherBase(EagerCore):
    """The scores are multiplied by log2(e) for a softmax of powers of two, the bias is not."""

    link = "https://github.com/meta-pytorch/segment-anything-fast/pull/71"

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores + bias * math.log(2)


@core("mask.golden", "cache.golden", **SERVING)
class LogSumExpsOfCentredKeys(CacheApart):
    """The mean key of a span is taken off its keys, but not added to its log-sum-exp again."""

    link = "https://github.com/ROCm/aiter/pull/3334"

    def partials(self, call: Joined, logits: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        plain = super().partials(call, logits, value)
        shifts = [self.shift(call, span) for span in self.spans(call)]
        return [(out, total - by) for (out, total), by in zip(plain, shifts, strict=True)]

    def shift(self, call: Joined, span: slice) -> Tensor:
        """What the mean key of a span scores with each query ``[B, H, Lq, 1]``."""
        mean = call.key[:, :, span].mean(dim=2, keepdim=True).nan_to_num(0.0)
        return self.scores(call, self.share(mean, call.query.shape[1]))


@core("mask.golden", "numerics.golden", **SERVING)
class PartialsMergedByBareExponentials(CacheApart):
    """Partial answers are merged by the exponentials of their log-sum-exps, which overflow."""

    link = "https://github.com/SHI-Labs/NATTEN/pull/202"

    def shares(self, call: Joined, totals: Tensor) -> Tensor:
        if totals.shape[-1] == 1:
            return super().shares(call, totals)
        parts = totals.exp()
        whole = parts.sum(dim=-1, keepdim=True)
        return parts / whole.masked_fill(whole == 0, 1.0)
