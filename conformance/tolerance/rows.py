"""The query rows that a long problem is judged on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor

from conformance._golden import golden

from . import model


def sampled_rows(length: int) -> Tensor:
    """Which of ``length`` query rows are judged: int64, ascending, all of them when they are few.

    Of many rows: the first, the last, those around the edges of blocks (15, 16, 17, 31 ...), and
    others drawn from a generator that only the length seeds.
    """
    if length <= model.SAMPLED_ROWS:
        return torch.arange(length)
    chosen = _edges(length)
    drawn = torch.randperm(length, generator=Generator().manual_seed(length)).tolist()
    others = [row for row in drawn if row not in chosen]
    rows = [*sorted(chosen), *others][: model.SAMPLED_ROWS]
    return torch.tensor(sorted(rows))


def _edges(length: int) -> set[int]:
    """The rows on either side of blocks of 16, 32, 64 ... rows, and both ends."""
    edges = {0, length - 1}
    block = model.SMALLEST_ROW_BLOCK
    while block < length:
        edges.update(row for row in (block - 1, block, block + 1) if row < length)
        block *= 2
    return edges


def restrict(attention: golden.Attention, rows: Tensor) -> golden.Attention:
    """The same evaluation with the query rows ``rows`` (int64 ``[R]``) only."""
    if rows.numel() == attention.query.shape[-2]:
        return attention
    bias, alibi = attention.bias, attention.alibi
    return replace(
        attention,
        query=attention.query[:, :, rows],
        given_query=attention.given_query[:, :, rows],
        positions=attention.positions[rows],
        bias=bias if bias is None or bias.shape[-2] == 1 else bias[:, :, rows],
        alibi=None if alibi is None else alibi[:, :, rows],
        allowed=attention.allowed[:, :, rows],
        empty=attention.empty[:, :, rows],
        scores=attention.scores[:, :, rows],
        capped=attention.capped[:, :, rows],
        modified=attention.modified[:, :, rows],
        logits=attention.logits[:, :, rows],
        weights=attention.weights[:, :, rows],
        output=attention.output[:, :, rows],
    )
