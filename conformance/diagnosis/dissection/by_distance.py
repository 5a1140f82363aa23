"""A bias by the distance from query to key, of any form: what a learned table adds to logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ..mistakes import DeclaredCall, NamedMistake, NotExpressible
from ..mistakes._steps import keys_ahead
from .by_head import alignments
from .logits import LogitFit, as_mistake
from .read_numbers import Number
from .reading import Reading
from .terms import ADDED, SCORES, Term

# Biases that are read at once: the equations grow with their number.
MOST_BIASES: Final = 600
# Distances on either side of a query whose biases are named.
NAMED: Final = 2
_ONE: Final = Number("1", lambda _sizes: 1.0)


def distance_biases(reading: Reading) -> Iterator[NamedMistake]:
    """A bias of each head that depends on the distance alone, by where queries may be counted from.

    It is known for the distances that were read: at longer lengths it cannot be acted out.
    """
    fit = LogitFit(reading)
    scores, bias = fit.column(SCORES), fit.column(ADDED[0])
    fixed = [column for column in (scores, bias) if column is not None]
    if scores is None or not fit.count or fit.solve(fixed, []) is not None:
        return
    for bottom_right in alignments(reading):
        ahead = keys_ahead(reading.call, bottom_right=bottom_right)
        table = _table(fit, ahead, fixed)
        if table is not None:
            yield _statement(table, int(ahead.min()), bottom_right=bottom_right)


def _table(fit: LogitFit, ahead: Tensor, fixed: list[Tensor]) -> Tensor | None:
    """The bias of each head by how far keys lie ahead ``[H, distances]``, NaN where none was read.

    From the least distance on, against the query's own place, or the nearest one that was read.
    """
    heads, least = fit.reading.sizes.num_heads, int(ahead.min())
    count = int(ahead.max()) - least + 1
    if heads * count > MOST_BIASES:
        return None
    used = fit.used.any(dim=0).flatten(1)
    of_distance = torch.nn.functional.one_hot((ahead - least).flatten(), count).T.bool()
    read = (used[:, None] & of_distance).any(dim=-1)
    nearest = (torch.arange(count) + least).abs().expand(heads, -1).masked_fill(~read, count)
    own = torch.nn.functional.one_hot(nearest.argmin(dim=1), count).bool()
    columns = []
    for head, distance in (read & ~own).nonzero().tolist():
        table = torch.zeros_like(fit.reading.weights)
        table[:, head] = of_distance[distance].reshape(ahead.shape).double()
        columns.append(fit.centred(table))
    solved = fit.solve(fixed, columns)
    if solved is None:
        return None
    biases = torch.where(read, 0.0, torch.nan).double()
    biases[read & ~own] = torch.tensor(solved, dtype=torch.float64)
    return biases


def _statement(biases: Tensor, least: int, *, bottom_right: bool) -> NamedMistake:
    def values(call: DeclaredCall, attention: golden.Attention) -> Tensor:
        index = keys_ahead(call, bottom_right=bottom_right) - least
        if attention.scores.shape[1] != len(biases):
            raise NotExpressible
        if bool((index < 0).any()) or bool((index >= biases.shape[1]).any()):
            raise NotExpressible
        table = biases[:, index]
        if bool((torch.isnan(table) & attention.allowed).any()):
            raise NotExpressible
        return table.nan_to_num().expand_as(attention.scores)

    named = "; ".join(f"head {head}: {_numbers(row, least)}" for head, row in enumerate(biases))
    farthest = max(-least, least + biases.shape[1] - 1)
    words = (
        "a bias by how far a key lies ahead of the query (against its own place, up to "
        f"{farthest} keys apart: {named}, …)"
    )
    return as_mistake([SCORES, Term(words, words, values)], [_ONE, _ONE])


def _numbers(row: Tensor, least: int) -> str:
    """The biases next to a query's own place."""
    near = [ahead for ahead in range(-NAMED, NAMED + 1) if ahead]
    return ", ".join(
        f"{float(row[ahead - least]):+.4g} at {ahead:+d}"
        for ahead in near
        if 0 <= ahead - least < len(row) and not bool(row[ahead - least].isnan())
    )
