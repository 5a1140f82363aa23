"""Masks and biases: what is added to the logits or hidden, every row keeping at least one key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Generator, Tensor

from conformance._golden import golden
from conformance.problems import mask_patterns

from .families import normal

Shape = tuple[int, int, int, int]
Masking = tuple[Tensor | None, Tensor | None]
MASKS: Final = (
    "none",
    "causal",
    "padding",
    "random",
    "window",
    "alibi",
    "relative bias",
    "bias and mask",
)
# Allowed keys far below zero: a finite number in place of minus infinity is then not small enough.
DEEP: Final = {"deep": -2e4, "deeper": -2e9}
DEEPEST_FLOAT16: Final = -6.1e4


def make_mask(name: str, shape: Shape, dtype: str, generator: Generator) -> Masking:
    """``keep`` (bool) and ``bias`` (float64), each ``[b, h, Lq, Lk]`` or None."""
    _, heads, queries, keys = shape
    if name in _KEPT:
        return _KEPT[name](shape, generator), None
    if name == "bias and mask":
        kept = mask_patterns.random(0.5)((1, 1, queries, keys), generator)
        return kept, normal(generator, 1, heads, queries, keys)
    if name in DEEP:
        lowest = max(DEEP[name], DEEPEST_FLOAT16) if dtype == "float16" else DEEP[name]
        bias = torch.full((1, 1, queries, keys), lowest, dtype=torch.float64)
        return _structure(shape, causal=True), bias
    if name == "relative bias":
        return None, 3.0 * normal(generator, 1, heads, queries, keys)
    return None, _alibi(heads, queries, keys) if name == "alibi" else None


def _structure(shape: Shape, *, causal: bool) -> Tensor:
    """The causal triangle, or a window over the last keys; row 0 of a tall table keeps key 0."""
    window = None if causal else (max(1, shape[3] // 4), 1)
    kept = golden.structural_mask(
        shape[2], shape[3], causal=causal, window=window, semantics=golden.STANDARD
    ).clone()
    kept[:, 0] |= ~kept.any(dim=-1)
    return kept[None, None]


def _padding(shape: Shape, generator: Generator) -> Tensor:
    kept = mask_patterns.padding((shape[0], 1, 1, shape[3]), generator)
    return kept.expand(-1, -1, shape[2], -1)


def _alibi(heads: int, queries: int, keys: int) -> Tensor:
    """Minus a slope a head times the distance (Press et al., arXiv:2108.12409)."""
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - (keys - queries)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    return (-slopes[:, None, None] * distance.abs().double())[None]


_KEPT: Final[dict[str, Callable[[Shape, Generator], Tensor]]] = {
    "causal": lambda shape, _: _structure(shape, causal=True),
    "window": lambda shape, _: _structure(shape, causal=False),
    "padding": _padding,
    "random": mask_patterns.random(0.5),
}
