"""Mistakes with numbers that are larger, smaller or stranger than usual."""

from __future__ import annotations

from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core


@core("numerics.golden", "numerics.value-linear")
class ValuesClippedToHalf(EagerCore):
    """Values are clipped to the largest number of float16, whatever the dtype is."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value.clamp(-65504.0, 65504.0))


@core("numerics.golden", "numerics.value-linear")
class TinyValuesFlushed(EagerCore):
    """Values below 1e-12 are taken for zero."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value.masked_fill(value.abs() < 1e-12, 0.0))  # noqa: PLR2004 (of the docstring)


@core("numerics.large-logits")
class QueriesClipped(EagerCore):
    """Queries and keys are clipped to six standard deviations, as activations usually are."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        query = call.query.clamp(-6.0, 6.0)
        return super().scores(call.replace(query=query), key.clamp(-6.0, 6.0))


@core("numerics.golden")
class FixedPointInputs(EagerCore):
    """The inputs are rounded to sixteen bits behind the point: exact for small integers only."""

    def attend(self, call: Call) -> Answer:
        step = 2.0**-16
        query, key, value = (
            (tensor / step).round() * step for tensor in (call.query, call.key, call.value)
        )
        return super().attend(call.replace(query=query, key=key, value=value))


@core("numerics.golden", "numerics.constant-value")
class NoiseUnderUsualTolerance(EagerCore):
    """Each number is off by up to nine in ten thousand, just within what tests often allow."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().mix(weights, value)
        return output * (1.0 + 9e-4 * (1e4 * output).sin())


@core("numerics.nan-shows")
class NanAnsweredWithZeros(EagerCore):
    """NaN in the answer is replaced by zeros, so that a broken query goes unnoticed."""

    def attend(self, call: Call) -> Answer:
        answer = super().attend(call)
        if isinstance(answer, tuple):
            return answer[0].nan_to_num(), answer[1].nan_to_num()
        return answer.nan_to_num()


@core("numerics.nan-shows", masks=["keep"])
class NanCleanedUnderMasks(EagerCore):
    """Under a mask, weights that are NaN become zeros, whatever made them NaN."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weights(logits, allowed)
        return weights if allowed is None else weights.nan_to_num(nan=0.0)


@core("numerics.nan-shows")
class NanValuesCleaned(EagerCore):
    """Values that are no numbers become zeros, so that no row is lost to padding."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value.nan_to_num(nan=0.0))
