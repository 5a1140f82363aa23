"""Mistakes in dropout on the attention weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..eager import Answer, Call, EagerCore
from ._kit import core


@core("state.dropout")
class DropoutIgnored(EagerCore):
    """The dropout rate is accepted and not used."""

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        del rate
        return weights


@core("state.dropout")
class DropoutNotRescaled(EagerCore):
    """The weights that survive dropout are not enlarged to make up for the dropped ones."""

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        return super().drop_out(weights, rate) * (1 - rate)


@core("state.dropout")
class DropoutRateInverted(EagerCore):
    """The rate is taken for the share of weights that is kept."""

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        return super().drop_out(weights, 1 - rate) if rate else weights


@core("state.dropout")
class DropoutOnLogits(EagerCore):
    """Dropout sets logits to zero before the softmax, where a logit of zero is an ordinary one."""

    rate = 0.0

    def attend(self, call: Call) -> Answer:
        self.rate = call.dropout
        return super().attend(call.replace(dropout=0.0))

    def scores(self, call: Call, key: Tensor) -> Tensor:
        return functional.dropout(super().scores(call, key), self.rate)


@core("state.dropout")
class DropoutNormalisedAgain(EagerCore):
    """The weights that survive dropout are divided by their sum instead of the share kept."""

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        dropped = super().drop_out(weights, rate)
        total = dropped.sum(dim=-1, keepdim=True)
        return dropped / total.masked_fill(total == 0, 1.0) if rate else weights


@core("state.dropout")
class DropoutOnOutput(EagerCore):
    """Dropout is applied to the weighted sum instead of the weights."""

    rate = 0.0

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        self.rate = rate
        return weights

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return functional.dropout(super().mix(weights, value), self.rate)


@core("state.dropout")
class DropoutOfWholeKeys(EagerCore):
    """One choice of keys is dropped for all rows, heads and items at once."""

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        kept = torch.rand(weights.shape[-1]) >= rate
        return weights * kept / (1 - rate) if rate else weights


@core("state.dropout")
class DropoutOfWholeRows(EagerCore):
    """All weights of a query are dropped together or kept together."""

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        kept = functional.dropout(torch.ones_like(weights[..., :1]), rate, training=bool(rate))
        return weights * kept


@core("state.dropout")
class DropoutDrawnOnce(EagerCore):
    """The generator is seeded anew in every call, so that the same weights are always dropped."""

    def drop_out(self, weights: Tensor, rate: float) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        kept = torch.rand(weights.shape, generator=generator, dtype=weights.dtype) >= rate
        return weights * kept / (1 - rate)
