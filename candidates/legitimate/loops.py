"""One head, one item, one query or one number at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kit import admitted, check, core, factor, soften


@core()
def head_by_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """A Python loop over the heads, whose answers are stacked."""
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    outputs = []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head].mT * factor(query, scale)
        outputs.append(soften(scores, table[:, head]) @ value[:, head])
    return torch.stack(outputs, dim=1)


@core()
def item_by_item(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Each item and head written into its place in an answer made beforehand."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    output = query.new_empty(*query.shape[:3], value.shape[-1])
    for item in range(query.shape[0]):
        for head in range(query.shape[1]):
            scores = query[item, head] @ key[item, head].T * factor(query, scale)
            output[item, head] = soften(scores, table[item, head]) @ value[item, head]
    return output


@core()
def query_by_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """One row of all heads at a time, as a decoder does it."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for row in range(query.shape[2]):
        scores = (key @ query[:, :, row, :, None]).squeeze(-1) * factor(query, scale)
        weights = soften(scores, table[:, :, row])
        output[:, :, row] = (weights.unsqueeze(-2) @ value).squeeze(-2)
    return output


SMALL = {
    "batch": [1, 2],
    "num_heads": [1, 2],
    "query_length": [1, 2, 3, 4],
    "key_length": [1, 2, 3, 4, 5],
    "head_size": [1, 2, 3],
    "value_head_size": [1, 2, 3],
}


@core(geometry=SMALL, without=["gradients"], expected_failures=[])
def python_numbers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Python's own floats, summed one by one; hidden keys are never looked at."""
    check(query, key, value)
    table = admitted(query, key, keep, causal=causal).expand(*query.shape[:3], key.shape[2])
    rows = [
        _row(x, table[item, head, row].tolist(), pairs, factor(query, scale))
        for item in range(query.shape[0])
        for head in range(query.shape[1])
        for pairs in [_pairs(key[item, head], value[item, head])]
        for row, x in enumerate(query[item, head].tolist())
    ]
    return torch.tensor(rows, dtype=query.dtype).reshape(*query.shape[:3], value.shape[-1])


def _pairs(key: Tensor, value: Tensor) -> list[tuple[list[float], list[float]]]:
    return list(zip(key.tolist(), value.tolist(), strict=True))


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _row(
    query: list[float],
    keep: list[bool],
    pairs: list[tuple[list[float], list[float]]],
    scale: float,
) -> list[float]:
    kept = [pair for pair, seen in zip(pairs, keep, strict=True) if seen]
    if not kept:
        return [0.0 for _ in pairs[0][1]]
    logits = [scale * _dot(query, key) for key, _ in kept]
    weights = [math.exp(logit - max(logits)) for logit in logits]
    columns = zip(*(value for _, value in kept), strict=True)
    return [_dot(weights, list(column)) / math.fsum(weights) for column in columns]
