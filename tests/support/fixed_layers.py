"""A layer that brings its weights, for tests of how it is declared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import conformance


def weights(**changes: Any) -> conformance.ProjectionWeights:
    """Four heads of size 3 that share two key/value heads of sizes 3 and 5."""
    defaults = {
        "q": torch.zeros(12, 7),
        "k": torch.zeros(6, 8),
        "v": torch.zeros(10, 9),
        "o": torch.zeros(11, 20),
    }
    return conformance.ProjectionWeights(**{**defaults, **changes})


def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A forward that is never called."""
    return query + key + value
