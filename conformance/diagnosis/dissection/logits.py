"""Fits terms to the logits that were read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...tolerance import model
from ..mistakes import DeclaredCall
from ..mistakes.named_mistake import read_every_key
from .reading import Reading

# The fewest logits in excess of a fit's parameters.
FEWEST_LEFT: Final = 3
TermValues = Callable[[DeclaredCall, golden.Attention], Tensor | None]


@dataclass(frozen=True)
class Term:
    """A possible term of the logits: values ``[B, H, Lq, Lk]``, None if absent."""

    words: str
    values: TermValues


def _scaled_products(_call: DeclaredCall, attention: golden.Attention) -> Tensor:
    run = read_every_key(attention.run)
    products: Tensor = run["scale"] * run["products"]
    return products


ALIBI: Final = Term("the declared bias by distance", lambda _call, attention: attention.alibi)
PRODUCTS: Final = Term("the scaled products", _scaled_products)


class LogitFit:
    """The equations of one reading: terms add up to the logits, up to a constant per row.

    Along another ``axis``, a constant for each slice. ``right_rows`` includes right rows.
    """

    def __init__(self, reading: Reading, axis: int = -1, *, right_rows: bool = False) -> None:
        self.reading, self.axis = reading, axis
        legible = reading.legible & reading.attention.allowed
        if not right_rows:  # a mistake may concern only wrong rows
            legible = legible & reading.wrong
        self.used = legible & (legible.sum(dim=axis, keepdim=True) > 1)
        self.count = int((legible.sum(dim=axis) - 1).clamp_min(0).sum())
        self.room = (model.LOGIT_READ_TO + reading.logit_error)[self.used]
        self.logits = self.centred(reading.logits)

    def centred(self, values: Tensor, cells: Tensor | None = None) -> Tensor:
        """Return the used cells of values ``[.., B, H, Lq, Lk]``, less their rows' means."""
        cells = self.used if cells is None else cells
        used = torch.where(cells, values, 0.0)
        count = cells.sum(dim=self.axis, keepdim=True).clamp_min(1)
        mean = used.sum(dim=self.axis, keepdim=True) / count
        return (values - mean)[..., cells]

    def column(self, term: Term) -> Tensor | None:
        """Return a term as a column of equations; None if absent or equal for all keys."""
        given = term.values(self.reading.call, self.reading.attention)
        if given is None:
            return None
        column = self.centred(given.expand_as(self.reading.weights))
        tells = torch.isfinite(column).all() & (column.abs() > model.LOGIT_READ_TO).any()
        return column if bool(tells) else None

    def solve(self, fixed: Sequence[Tensor], free: Sequence[Tensor]) -> list[float] | None:
        """Return the factors of free columns without residual; None if a residual is left."""
        if self.count < len(free) + FEWEST_LEFT:
            return None
        target = self.rest(fixed)
        table = torch.stack(list(free), dim=-1)
        weight = self.room.reciprocal()[:, None]
        solution = torch.linalg.lstsq(table * weight, (target[:, None] * weight)).solution
        left = (target - (table @ solution)[:, 0]).abs()
        return solution[:, 0].tolist() if bool((left <= 3 * self.room).all()) else None

    def rest(self, fixed: Sequence[Tensor]) -> Tensor:
        """Return the logits less the given columns."""
        return self.logits - sum(fixed, torch.zeros_like(self.logits))
