"""Mistakes with biases from a table by distance, and with their gradients."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..eager import Call, EagerCore
from ..relative_tables import CLIPPED, T5, RelativeCore, T5Core
from ._kit import core

_SHARED: Final[dict[str, Any]] = {
    "masks": ["keep", "bias"],
    "dtypes": ["float32"],
    "features": ["scale", "gqa", "softcap", "gradients", "relative_table"],
}
BY_DISTANCE: Final[dict[str, Any]] = {**_SHARED, "semantics": CLIPPED}
OF_T5: Final[dict[str, Any]] = {**_SHARED, "semantics": T5}
TABLE, GRADIENT = "learned.relative-table", "gradients.learned"


@core(TABLE, **BY_DISTANCE)
class FromKeyToQuery(RelativeCore):
    """The table is read by the places from key to query."""

    def buckets(self, ahead: Tensor) -> Tensor:
        return super().buckets(-ahead)


@core(TABLE, **BY_DISTANCE)
class ColumnsReversed(RelativeCore):
    """Each head takes the column of the head counted from the end."""

    def of_pairs(self, buckets: Tensor) -> Tensor:
        return super().of_pairs(buckets).flip(0)


@core(TABLE, **BY_DISTANCE)
class FirstColumnForAll(RelativeCore):
    """Every head takes the first column."""

    def of_pairs(self, buckets: Tensor) -> Tensor:
        return super().of_pairs(buckets)[:1]


@core(TABLE, **BY_DISTANCE)
class TableScaledToo(RelativeCore):
    """The entries are multiplied by the scale of the products."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        entries = self.of_pairs(self.buckets(self.ahead(call)))
        return EagerCore.logits(self, call, key) + entries * self.scale(call)


@core(TABLE, **BY_DISTANCE)
class TableBehindTheFirstKey(RelativeCore):
    """Queries are counted from the first key, though causality ends at the last."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        places = torch.arange(call.key_length) - torch.arange(call.query_length)[:, None]
        return EagerCore.logits(self, call, key) + self.of_pairs(self.buckets(places))


@core(TABLE, **OF_T5)
class BothSidesAlike(T5Core):
    """Keys ahead of a query take the buckets of those behind it."""

    def buckets(self, ahead: Tensor) -> Tensor:
        return self.of_side(ahead.abs(), len(self.table) // 2)


@core(TABLE, **OF_T5)
class SidesExchanged(T5Core):
    """Keys behind a query take the buckets of those ahead, and the reverse."""

    def buckets(self, ahead: Tensor) -> Tensor:
        return super().buckets(-ahead)


@core(TABLE, **OF_T5)
class AllBucketsForOneSide(T5Core):
    """An encoder sorts distances as a decoder does."""

    def buckets(self, ahead: Tensor) -> Tensor:
        return self.of_side((-ahead).clamp_min(0), len(self.table))


@core(GRADIENT, "gradients.golden", **BY_DISTANCE)
class TableDetached(RelativeCore):
    """No gradient reaches the table."""

    def of_pairs(self, buckets: Tensor) -> Tensor:
        return super().of_pairs(buckets).detach()


@core(GRADIENT, "gradients.golden", **BY_DISTANCE)
class TableGradientOfTheFirstItem(RelativeCore):
    """The gradient of the table is that of the first item, not the sum over all."""

    def logits(self, call: Call, key: Tensor) -> Tensor:
        logits = EagerCore.logits(self, call, key)
        entries = self.of_pairs(self.buckets(self.ahead(call)))
        return torch.cat([logits[:1] + entries, logits[1:] + entries.detach()])
