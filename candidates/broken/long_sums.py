"""Mistakes in how long sums are added up: what is small is lost to what is there already."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eager import Answer, Call, EagerCore
from ._kit import core
from .half_precision import HALVES, FusedCore

# Terms that a matrix instruction adds up before its accumulator is rounded.
AT_ONCE = 16
# From so many keys on, another kernel is chosen.
LONG = 600


def added_up_in_parts(
    left: Tensor, right: Tensor, working: torch.dtype, at_once: int = AT_ONCE
) -> Tensor:
    """A product of matrices whose partial sums are rounded to ``working`` after some terms each."""
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=left.dtype)
    for first in range(0, left.shape[-1], at_once):
        part = left[..., first : first + at_once] @ right[..., first : first + at_once, :]
        total = (total + part).to(working).to(left.dtype)
    return total


class InWorkingDtype(FusedCore):
    """A core that computes in float32 and knows the dtype that its inputs came in."""

    working = torch.float32

    def attend(self, call: Call) -> Answer:
        """The same, with the dtype kept."""
        self.working = call.query.dtype
        return super().attend(call)


@core("numerics.accumulation", scores="fused", dtypes=HALVES)
class AccumulatorInHalfPrecision(InWorkingDtype):
    """The accumulator of the weighted sum is rounded to half precision after every 16 keys."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return added_up_in_parts(weights, value, self.working)


@core("numerics.accumulation", scores="fused", dtypes=HALVES)
class AccumulatorRoundedEveryFourKeys(InWorkingDtype):
    """The accumulator of the weighted sum is rounded to half precision after every 4 keys."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return added_up_in_parts(weights, value, self.working, at_once=4)


@core(
    "numerics.accumulation", "numerics.golden", "numerics.near-ties", scores="fused", dtypes=HALVES
)
class ScoresAddedUpInHalfPrecision(InWorkingDtype):
    """The dot products are added up in half precision, one channel after the other."""

    def scores(self, call: Call, key: Tensor) -> Tensor:
        keys = key.transpose(-1, -2)
        return added_up_in_parts(call.query, keys, self.working, at_once=1) * self.scale(call)


@core("numerics.accumulation", scores="fused", dtypes=HALVES)
class DenominatorInHalfPrecisionOfLongRows(InWorkingDtype):
    """The exponentials are added up in half precision, whatever the weighted sum is kept in."""

    def softmax(self, logits: Tensor) -> Tensor:
        exponentials = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        ones = torch.ones(exponentials.shape[-1], 1, dtype=exponentials.dtype)
        return exponentials / added_up_in_parts(exponentials, ones, self.working, at_once=1)


@core("numerics.accumulation")
class LongRowsInFloat16(EagerCore):
    """Rows of 600 keys and more are added up in float16, 16 keys at a time."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        if weights.shape[-1] < LONG:
            return super().mix(weights, value)
        return added_up_in_parts(weights, value, torch.float16).to(value.dtype)
