"""Mistakes with padded queries: which rows they are, what they hold, how they are answered."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..structured_attention import StructuredCore
from ._kit import core

_PRIMARY: Final = "mask.padded-queries"
PADDED: Final[dict[str, Any]] = {
    "masks": ["query_lengths"],
    "features": ["scale", "gqa"],
    "padded_rows": "zeros",
}
ANY: Final[dict[str, Any]] = {**PADDED, "padded_rows": "any"}


@core(_PRIMARY, "numerics.options", **ANY)
class QueryLengthsTakenForKeys(StructuredCore):
    """The lengths of the queries are taken for those of the keys."""

    def query_lengths(self, lengths: Tensor, rows: int) -> Tensor:
        del rows
        return (torch.arange(self.columns) < lengths[:, None])[:, None, None]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        self.columns = key.shape[2]
        return super().__call__(query, key, value, **options)


@core(_PRIMARY, "numerics.options", **ANY)
class QueryLengthsOfFirstItem(StructuredCore):
    """The lengths of the first item are those of all items."""

    def query_lengths(self, lengths: Tensor, rows: int) -> Tensor:
        return super().query_lengths(lengths[:1], rows)


@core(_PRIMARY, "numerics.options", **ANY)
class QueryLengthsOneShort(StructuredCore):
    """The last query of each item is taken for padding."""

    def query_lengths(self, lengths: Tensor, rows: int) -> Tensor:
        return super().query_lengths(lengths - 1, rows)


@core(_PRIMARY, "numerics.options", **ANY)
class QueryLengthsFromTheEnd(StructuredCore):
    """The first rows are taken for padding, and not the last ones."""

    def query_lengths(self, lengths: Tensor, rows: int) -> Tensor:
        return super().query_lengths(lengths, rows).flip(2)


@core(_PRIMARY, **PADDED)
class PaddedRowsAnswered(StructuredCore):
    """Queries behind the lengths are answered as any other, where zeros are declared."""

    def query_lengths(self, lengths: Tensor, rows: int) -> Tensor:
        return torch.ones_like(super().query_lengths(lengths, rows))


@core(_PRIMARY, **ANY)
class PaddedRowsInTheScale(StructuredCore):
    """Queries are centred by the mean of all rows, padded ones among them, which is added back."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        mean = query.mean(dim=2, keepdim=True)
        return super().__call__(query - mean + mean, key, value, **options)
