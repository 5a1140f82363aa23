"""Mistakes with numbers at the ends of what a format holds."""

from __future__ import annotations

from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .half_precision import HALVES, FusedCore

NEARLY_ZERO = 1e-6


def without_small(tensor: Tensor, limit: float) -> Tensor:
    """What is smaller than a limit becomes zero."""
    return tensor.masked_fill(tensor.abs() < limit, 0.0)


@core("numerics.overflow-half", dtypes=["float16"])
class ProductOverflowsHalf(EagerCore):
    """In float16 the product of query and key is stored before it is scaled, and overflows."""


@core("numerics.overflow-half", scores="fused", dtypes=["float16"])
class ProductClampedToHalf(FusedCore):
    """The products are clamped to the largest numbers of float16: larger ones become equal."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        products = call.query @ key.transpose(-1, -2)
        return products.clamp(-65504.0, 65504.0) * self.scale(call)


@core("numerics.subnormal", "numerics.golden")
class SmallQueriesTakenForZero(EagerCore):
    """What is below a millionth in the query is taken for zero, however large the keys are."""

    def attend(self, call: Call) -> Answer:
        return super().attend(call.replace(query=without_small(call.query, NEARLY_ZERO)))


@core("numerics.subnormal", scores="fused", dtypes=HALVES)
class SmallValuesTakenForZero(FusedCore):
    """What is below a thousandth in the values is taken for zero."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().mix(weights, without_small(value, 1e-3))


@core("numerics.subnormal")
class QueryDividedByItsSize(EagerCore):
    """Queries are brought to size one by the sum of their squares, which underflows to zero."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        size = call.query.square().sum(dim=-1, keepdim=True).sqrt()
        return super().scores(call.replace(query=call.query / size), key) * size
