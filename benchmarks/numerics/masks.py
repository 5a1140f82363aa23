"""Masks and biases: what is added to the logits or hidden, every row keeping at least one key."""

from __future__ import annotations

from typing import Final

import torch
from torch import Generator, Tensor

from conformance import mask_patterns
from conformance._golden import golden

from .families import normal

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


def make_mask(
    name: str, shape: tuple[int, int, int, int], dtype: str, generator: Generator
) -> Masking:
    """``keep`` (bool) and ``bias`` (float64), each ``[b, h, Lq, Lk]`` or None."""
    batch, heads, queries, keys = shape
    if name in ("causal", "window"):
        return _structure(name, queries, keys), None
    if name == "padding":
        return mask_patterns.padding((batch, 1, 1, keys), generator).expand(
            -1, -1, queries, -1
        ), None
    if name == "random":
        return mask_patterns.random(0.5)((batch, heads, queries, keys), generator), None
    if name == "alibi":
        return None, _alibi(heads, queries, keys)
    if name == "relative bias":
        return None, 3.0 * normal(generator, 1, heads, queries, keys)
    if name == "bias and mask":
        kept = mask_patterns.random(0.5)((1, 1, queries, keys), generator)
        return kept, normal(generator, 1, heads, queries, keys)
    if name in DEEP:
        lowest = max(DEEP[name], DEEPEST_FLOAT16) if dtype == "float16" else DEEP[name]
        bias = torch.full((1, 1, queries, keys), lowest, dtype=torch.float64)
        return _structure("causal", queries, keys), bias
    return None, None


def _structure(name: str, queries: int, keys: int) -> Tensor:
    """The causal triangle, or a window over the last keys; row 0 of a tall table keeps key 0."""
    window = (max(1, keys // 4), 1) if name == "window" else None
    kept = golden.structural_mask(
        queries, keys, causal=name == "causal", window=window, semantics=golden.STANDARD
    )
    kept = kept.clone()
    kept[:, 0] |= ~kept.any(dim=-1)
    return kept[None, None]


def _alibi(heads: int, queries: int, keys: int) -> Tensor:
    """Minus a slope a head times the distance (Press et al., arXiv:2108.12409)."""
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - (keys - queries)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    return (-slopes[:, None, None] * distance.abs().double())[None]
