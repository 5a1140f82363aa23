"""Exponentials and their sums, and keys that are hidden."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

BLOCKS: Final = (1, 2, 4, 8, 16, 32, 64, 128)


def row_largest(logits: Tensor) -> Tensor:
    largest = logits.amax(dim=-1, keepdim=True)
    return torch.where(torch.isneginf(largest), 0.0, largest)


def present(logits: Tensor) -> Tensor:
    return logits.masked_fill(torch.isneginf(logits), 0.0)
