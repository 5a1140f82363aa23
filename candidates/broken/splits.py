"""Mistakes in putting together answers over parts of the keys."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from ..eager import EagerCore
from ._kit import core

# The halves know nothing of dropout, and the weights that are returned are not theirs.
FUSED: Final[dict[str, Any]] = {"features": ["scale", "gqa"]}


class SplitCore(EagerCore):
    """A correct core that answers from two halves of the keys and merges by their log-sum-exp."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        """The weighted sum over each half, weighed by the half's share."""
        parts = self.parts(weights.shape[-1])
        answers = [self.part(weights[..., keys], value[..., keys, :]) for keys in parts]
        shares = [self.share_of(weights[..., keys]) for keys in parts]
        return self.merge(answers, shares)

    def parts(self, keys: int) -> list[slice]:
        """Two halves, the second one larger if the number of keys is odd."""
        return [slice(0, keys // 2), slice(keys // 2, keys)]

    def part(self, weights: Tensor, value: Tensor) -> Tensor:
        """The normalised answer over some of the keys."""
        total = weights.sum(dim=-1, keepdim=True)
        return (weights @ value) / total.masked_fill(total == 0, 1.0)

    def share_of(self, weights: Tensor) -> Tensor:
        """The logarithm of what the part's weights sum to."""
        return weights.sum(dim=-1, keepdim=True).log()

    def merge(self, answers: list[Tensor], shares: list[Tensor]) -> Tensor:
        """The parts' answers, each as heavy as its share."""
        largest = self.largest(torch.stack(shares))
        heavy = torch.exp(torch.stack(shares) - largest)
        total = heavy.sum(dim=0)
        mixed = (torch.stack(answers) * heavy).sum(dim=0)
        return mixed / total.masked_fill(total == 0, 1.0)

    def largest(self, shares: Tensor) -> Tensor:
        """The largest share, zero where no part has a key."""
        largest = shares.amax(dim=0)
        return largest.masked_fill(largest.isneginf(), 0.0)


@core("numerics.golden", "equivariance.keys", **FUSED)
class SplitsMergedEqually(SplitCore):
    """The answers over two halves of the keys are averaged, whatever the halves weigh."""

    def share_of(self, weights: Tensor) -> Tensor:
        return torch.where(weights.sum(dim=-1, keepdim=True) > 0, 0.0, -math.inf)


@core("numerics.golden", "equivariance.keys", **FUSED)
class SplitsMergedInBaseTwo(SplitCore):
    """The halves' sums are kept as logarithms to base two and merged as natural ones."""

    def share_of(self, weights: Tensor) -> Tensor:
        return super().share_of(weights) / math.log(2.0)


@core("numerics.golden", "equivariance.keys", **FUSED)
class RemainderOfSplitLost(SplitCore):
    """The keys are cut into two equal halves: of an odd number the last is lost."""

    def parts(self, keys: int) -> list[slice]:
        half = max(keys // 2, 1)
        return [slice(0, half), slice(half, 2 * half)]


@core("mask.empty-row", "mask.empty-row-isolated", **FUSED)
class SplitsWithoutKeysAreNan(SplitCore):
    """Halves that both have no key for a row are merged into NaN: the row is not zeros."""

    def largest(self, shares: Tensor) -> Tensor:
        return shares.amax(dim=0)


@core("mask.golden", "mask.single-key", **FUSED)
class FirstSplitDecidesEmptiness(SplitCore):
    """A row without keys in the first half of them is taken for one without any."""

    def merge(self, answers: list[Tensor], shares: list[Tensor]) -> Tensor:
        return super().merge(answers, shares).masked_fill(shares[0].isneginf(), 0.0)
