"""Answers that only look like attention."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import EagerCore
from ._kit import core


@core("numerics.golden")
class Zeros(EagerCore):
    """Every answer is zero, whatever the inputs are."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return torch.zeros_like(super().mix(weights, value))


@core("numerics.golden", "numerics.convex")
class Constant(EagerCore):
    """Every answer is the same number."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return torch.full_like(super().mix(weights, value), 0.5)


@core("numerics.golden", "numerics.scale", "mask.golden")
class MeanOfValues(EagerCore):
    """Every answer is the mean of all values, whatever the queries, keys and mask."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(torch.full_like(weights, 1 / max(weights.shape[-1], 1)), value)


@core("numerics.golden", "mask.bias-counts")
class MeanOfAllowedValues(EagerCore):
    """Every answer is the mean of the values that the mask admits."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.masked_fill(~logits.isneginf(), 0.0), dim=-1)


@core("numerics.golden", "mask.bias", "mask.bias-counts")
class BestKeyOnly(EagerCore):
    """Each query takes the value of its best key alone, as a softmax at temperature zero would."""

    def softmax(self, logits: Tensor) -> Tensor:
        best = logits.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(logits).scatter(-1, best, 1.0)


@core("numerics.golden", "equivariance.keys")
class OwnValue(EagerCore):
    """Each query takes the value at its own place."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(weights.shape[2]) % max(value.shape[2], 1)
        return value[:, :, places]


@core("numerics.golden")
class RightOnlyAtFirst(EagerCore):
    """The first three answers are right, and then the mean of the values is good enough."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        self.calls += 1
        return super().mix(weights if self.calls <= 3 else weights * 0 + weights.mean(), value)  # noqa: PLR2004 (few calls)


@core("numerics.golden")
class RightOnlyWhenSmall(EagerCore):
    """Problems with more than eight keys are answered from the first eight alone."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        first = torch.arange(logits.shape[-1]) < 8  # noqa: PLR2004 (the eight of the docstring)
        return super().weights(logits, first if allowed is None else allowed & first)
