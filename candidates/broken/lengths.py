"""Mistakes that only sequences of thousands of keys show."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import EagerCore
from ._kit import core

BLOCK = 16
# Block numbers that are kept in seven bits.
BLOCKS = 128


@core("numerics.long-sequence")
class BlockNumbersWrap(EagerCore):
    """Blocks of sixteen keys are numbered with seven bits: past 2048 keys they start anew."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(value.shape[2]) % (BLOCK * BLOCKS)
        return super().mix(weights, value[:, :, places])


@core("numerics.long-sequence")
class FarKeysSkipped(EagerCore):
    """Keys past the first 2048 are never read: the grid of blocks is too small."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        near = torch.arange(logits.shape[-1]) < BLOCK * BLOCKS
        if logits.shape[-1] <= BLOCK * BLOCKS:
            return super().weights(logits, allowed)
        return super().weights(logits, near if allowed is None else allowed & near)


@core("numerics.long-sequence")
class OneFarBlockSkipped(EagerCore):
    """One block of sixteen keys behind the 2048th is left out: the loop resumes too late."""

    def weights(self, logits: Tensor, allowed: Tensor | None) -> Tensor:
        place = torch.arange(logits.shape[-1]) - BLOCK * BLOCKS
        read = (place < 0) | (place >= BLOCK)
        if bool(read.all()):
            return super().weights(logits, allowed)
        return super().weights(logits, read if allowed is None else allowed & read)
