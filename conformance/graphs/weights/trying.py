"""How many heads make known projections give the graph's own answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._golden import golden
from .questions import Questions
from .references import NEAREST

Array = np.ndarray[Any, Any]


def head_counts(
    questions: Questions, parts: Mapping[str, Tensor], told: int | None
) -> tuple[int, int] | None:
    """``(heads, key/value heads)`` with which the golden comes near to the graph's answers."""
    weights = golden.ProjectionWeights(**parts)
    tokens = {
        role: np.random.default_rng(len(role)).standard_normal(questions.shape(role))
        for role in questions.tokens
    }
    answer = questions.answer(questions.ask(tokens))
    inputs = [
        torch.from_numpy(tokens[questions.role_of(part)]) for part in ("query", "key", "value")
    ]
    best: tuple[float, tuple[int, int]] | None = None
    for counts in _counts(weights, told):
        error = _error(inputs, weights, counts, questions.reading.causal, answer)
        if error < NEAREST and (best is None or error < best[0]):
            best = error, counts
    return None if best is None else best[1]


def _counts(weights: golden.ProjectionWeights, told: int | None) -> Iterator[tuple[int, int]]:
    """All divisions of the rows into heads."""
    rows, shared = len(weights.q), len(weights.k)
    for heads in [told] if told else range(1, rows + 1):
        size, rest = divmod(rows, heads)
        if not rest and shared % size == 0 and heads % (shared // size or 1) == 0:
            yield heads, shared // size


def _error(
    inputs: list[Tensor],
    weights: golden.ProjectionWeights,
    counts: tuple[int, int],
    causal: str | None,
    answer: Array,
) -> float:
    semantics = golden.Semantics(causal_alignment=causal or "bottom-right")  # type: ignore[arg-type]
    try:
        found = golden.multi_head_attention(
            inputs[0],
            inputs[1],
            inputs[2],
            weights,
            num_heads=counts[0],
            num_kv_heads=counts[1],
            causal=causal is not None,
            semantics=semantics,
        ).output.numpy()
    except (ValueError, TypeError):
        return float("inf")
    if found.shape != answer.shape:
        return float("inf")
    size = float(np.linalg.norm(found)) or 1.0
    return float(np.linalg.norm(found - answer)) / size
