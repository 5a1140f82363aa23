"""Weights that count as zero because they are small, or not among the largest of their row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import NamedMistake
from .denominators import weighed_by
from .reading import Reading, roundest, statement


def dropped_weight_statements(reading: Reading) -> Iterator[NamedMistake]:
    """Weights of keys that count as zero because they are small, or not among the largest."""
    exact, allowed = reading.attention.weights, reading.attention.allowed
    clear = allowed & (exact > 4 * reading.error)
    lost, kept = clear & ~reading.visible, clear & reading.visible
    if not lost.any() or not kept.any():
        return
    least, most = float(exact[lost].max()), float(exact[kept].min())
    if least < most:
        number = roundest(least, most)
        yield from _dropped(reading, f"below {number:g}", lambda weights: weights < number)
    counts = reading.visible.sum(dim=-1)[lost.any(dim=-1)]
    count = int(counts[0])
    if count and bool((counts == count).all()):
        yield from _dropped(
            reading, f"that are not among the {count} largest of a row", _not_largest(count)
        )


def _not_largest(count: int) -> Callable[[Tensor], Tensor]:
    def holds(weights: Tensor) -> Tensor:
        if weights.shape[-1] <= count:
            return torch.zeros_like(weights, dtype=torch.bool)
        return weights < weights.topk(count, dim=-1).values[..., -1:]

    return holds


def _dropped(
    reading: Reading, words: str, dropped: Callable[[Tensor], Tensor]
) -> Iterator[NamedMistake]:
    for late in (False, True):
        weights_of = _without(dropped, renormalised=not late)
        if reading.agree(reading.weights, weights_of(reading.attention)):
            left = "" if late else ", and the others sum to one"
            yield statement(
                f"weights: those {words} are zero{left}",
                f"weights {words} count as zero{left}",
                "let every key that is not hidden have its weight, however small",
                core=weighed_by(weights_of),
            )


def _without(
    dropped: Callable[[Tensor], Tensor], *, renormalised: bool
) -> Callable[[golden.Attention], Tensor]:
    def weights_of(attention: golden.Attention) -> Tensor:
        weights = attention.weights
        left = weights.masked_fill(dropped(weights), 0.0)
        if not renormalised:
            return left
        total = left.sum(dim=-1, keepdim=True)
        return left * weights.sum(dim=-1, keepdim=True) / torch.where(total == 0.0, 1.0, total)

    return weights_of
