"""Cores whose scores go through a function of the user's, the declared ``score_mod``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance import Semantics

from ._kit import admitted, core, factor, soften


def relative(score: Tensor, _batch: Any, head: Any, query: Any, key: Any) -> Tensor:
    """A bias by signed distance, another for each head."""
    moved: Tensor = score + (0.1 * (head + 1) * (key - query)).to(score.dtype)
    return moved


def checkered(score: Tensor, _batch: Any, head: Any, query: Any, key: Any) -> Tensor:
    """Every other key counts half, by query and head."""
    return torch.where((query + key + head) % 2 == 0, score, 0.5 * score)


def indices(scores: Tensor) -> list[Tensor]:
    """The indices of ``[B, H, Lq, Lk]``, each along its own axis."""
    counts = [torch.arange(size) for size in scores.shape]
    shapes = [(-1, 1, 1, 1), (-1, 1, 1), (-1, 1), (-1,)]
    return [count.view(shape) for count, shape in zip(counts, shapes, strict=True)]


@core(semantics=Semantics(score_mod=relative))
def relatively_biased(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The function as it is, on all scores at once."""
    scores = query @ key.mT * factor(query, scale)
    scores = relative(scores, *indices(scores))
    return soften(scores, admitted(query, key, keep, causal=causal)) @ value


@core(semantics=Semantics(score_mod=checkered), masks=["bias"], features=["scale", "gqa"])
def checkered_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A factor of a half in every other place, made of the indices by hand."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.mT * factor(query, scale)
    _, head, row, column = indices(scores)
    odd = (head + row + column) % 2
    logits = scores * (1.0 - 0.5 * odd).to(scores.dtype)
    table = admitted(query, key, None, causal=causal)
    if bias is not None:
        logits, table = logits + bias, table & ~torch.isneginf(bias)
    return soften(logits, table) @ value
