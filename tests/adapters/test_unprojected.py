"""Modules without matrices attend between their inputs themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from conformance.adapters.unprojected import unprojected


class OfOneQuery(nn.Module):
    """Luong's dot attention: memory first, a query ``[B, E]``, and no scale."""

    def forward(self, memory: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """The context and its weights."""
        weights = torch.bmm(memory, query.unsqueeze(2)).squeeze(2).softmax(1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1), weights


class Masked(nn.Module):
    """Scaled products of queries and a memory, with a mask that nobody gives."""

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Of tokens."""
        logits = query @ memory.mT / query.shape[-1] ** 0.5
        logits = logits if mask is None else logits.masked_fill(mask, -torch.inf)
        return logits.softmax(-1) @ memory


class WeightsAlone(nn.Module):
    """Luong's dot scores with tokens before items: the caller weighs the memory."""

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """Weights ``[B, 1, Lk]`` of a query ``[1, B, E]``."""
        return (query * memory).sum(2).T.softmax(1).unsqueeze(1)


class OverItems(OfOneQuery):
    """The softmax runs over the batch."""

    def forward(self, memory: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """The context and its weights."""
        weights = torch.bmm(memory, query.unsqueeze(2)).squeeze(2).softmax(0)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1), weights


@pytest.mark.parametrize(
    ("module", "scale", "unjudged"),
    [
        (OfOneQuery(), "none", ""),
        (WeightsAlone(), "none", ""),
        (Masked(), "inverse-sqrt-head-size", "mask was not checked"),
    ],
)
def test_tokens_are_queries_keys_and_values(module: nn.Module, scale: str, unjudged: str) -> None:
    """In either order, with or without a scale; a mask that no call gives is told."""
    made = unprojected(module, "mine")
    assert made is not None
    assert (made.declaration.semantics.scale, made.unjudged) == (scale, unjudged)


def test_what_is_no_attention_between_tokens_is_left() -> None:
    """A wrong axis agrees with no golden answer; a matrix is a projection."""
    assert unprojected(OverItems(), "mine") is None
    assert unprojected(nn.Linear(24, 24), "mine") is None
