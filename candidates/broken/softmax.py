"""Mistakes in how logits become weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eager import Call, EagerCore
from ._kit import core


@core("numerics.golden", "numerics.constant-value", "numerics.convex")
class SoftmaxOverQueries(EagerCore):
    """The softmax runs over the queries, so that the weights of a row do not sum to one."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-2)


@core("numerics.golden", "numerics.constant-value", "numerics.convex")
class SoftmaxOverHeads(EagerCore):
    """The softmax runs over the heads, as an implicit or mistaken dim does."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1)


@core("equivariance.batch-independent", "numerics.golden", "numerics.constant-value")
class SoftmaxOverBatch(EagerCore):
    """The softmax runs over the batch, so that each item's answer depends on the others."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=0)


@core("numerics.golden", "numerics.constant-value", "numerics.convex", "numerics.key-shift")
class NoSoftmax(EagerCore):
    """The logits themselves weigh the values: there is no softmax."""

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.masked_fill(torch.isneginf(logits), 0.0)


@core("numerics.large-logits", "mask.single-key")
class NoMaximumSubtracted(EagerCore):
    """The exponentials are taken without subtracting the row's maximum first: they overflow."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = torch.exp(logits)
        return weights / weights.sum(dim=-1, keepdim=True)


@core("numerics.large-logits")
class MaximumOfTheWholeTensor(EagerCore):
    """One maximum is subtracted everywhere instead of each row's own: low rows underflow."""

    def softmax(self, logits: Tensor) -> Tensor:
        largest = logits.max() if logits.numel() else 0.0
        weights = torch.exp(logits - largest)
        return weights / weights.sum(dim=-1, keepdim=True)


@core("numerics.large-logits")
class LogitsClamped(EagerCore):
    """Logits are clamped to 50 so that the exponentials cannot overflow."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call, key).clamp(-50.0, 50.0)


@core("numerics.constant-value", "numerics.golden", "numerics.key-shift")
class SigmoidWeights(EagerCore):
    """Each weight is the sigmoid of its own logit: they do not sum to one."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)


@core("numerics.constant-value", "numerics.golden", "numerics.key-shift")
class OneInTheDenominator(EagerCore):
    """A one is added to the sum of exponentials: a row may attend to nothing."""

    def softmax(self, logits: Tensor) -> Tensor:
        largest = logits.amax(dim=-1, keepdim=True).clamp_min(0.0)
        weights = torch.exp(logits - largest)
        return weights / (weights.sum(dim=-1, keepdim=True) + torch.exp(-largest))


@core("numerics.constant-value", "numerics.golden", "numerics.convex")
class DividedByCount(EagerCore):
    """The exponentials are divided by the number of keys instead of their own sum."""

    def softmax(self, logits: Tensor) -> Tensor:
        largest = logits.amax(dim=-1, keepdim=True)
        return torch.exp(logits - largest) / logits.shape[-1]


@core("numerics.scale", "numerics.golden")
class PowersOfTwo(EagerCore):
    """Powers of two are taken where exponentials are meant, as if the logits had been rescaled."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits * math.log(2.0), dim=-1)


@core("numerics.convex", "numerics.golden", "numerics.key-shift")
class ScoresOverTheirSum(EagerCore):
    """The scores are divided by their sum without exponentials: weights can be negative."""

    def softmax(self, logits: Tensor) -> Tensor:
        scores = logits.masked_fill(torch.isneginf(logits), 0.0)
        return scores / scores.sum(dim=-1, keepdim=True)


@core("numerics.convex", "numerics.constant-value", "numerics.golden")
class OutputTimesSqrtKeys(EagerCore):
    """The weighted sum is multiplied by the root of the number of keys, to keep the variance."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value) * math.sqrt(weights.shape[-1])


@core("numerics.value-linear", "numerics.golden", "numerics.convex")
class ValuesNormalised(EagerCore):
    """The values are normalised to unit length, as queries and keys are in some models."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, torch.nn.functional.normalize(value, dim=-1))


@core("numerics.value-linear", "numerics.golden")
class OutputRectified(EagerCore):
    """An activation function is applied to the weighted sum: negative answers become zero."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, value).relu()


@core("numerics.key-shift", "numerics.golden", "numerics.scale")
class CosineScores(EagerCore):
    """Queries and keys are normalised first: the scores are cosines, not dot products."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        query = torch.nn.functional.normalize(call.query, dim=-1)
        return super().scores(call.replace(query=query), torch.nn.functional.normalize(key, dim=-1))


@core("numerics.key-shift", "numerics.golden")
class DistanceScores(EagerCore):
    """The scores are negative distances between query and key instead of dot products."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return -torch.cdist(call.query, key) * self.scale(call)


@core("numerics.golden", "numerics.large-logits")
class AbsoluteScores(EagerCore):
    """The sign of the scores is lost: opposite keys are attended as much as similar ones."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return super().scores(call, key).abs()


@core("numerics.golden")
class SoftmaxTwice(EagerCore):
    """The softmax is applied to weights that are a softmax already."""

    def softmax(self, logits: Tensor) -> Tensor:
        once = torch.softmax(logits, dim=-1)
        return torch.softmax(once.masked_fill(torch.isneginf(logits), -math.inf), dim=-1)
