"""Mistakes in the backward pass of a user's function of scores."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from ._kit import core
from .normalisation import MODIFIED, Leaning

ALSO: Final = ("gradients.options", "gradients.any-length")


@core("gradients.golden", *ALSO, **MODIFIED)
class FunctionForgottenBackward(Leaning):
    """The gradients of modified scores are returned for those of the scores."""

    def modify(self, scores: Tensor) -> Tensor:
        return scores + (super().modify(scores) - scores).detach()


@core("gradients.golden", *ALSO, **MODIFIED)
class QueryHalvedBesideFunction(Leaning):
    """Beside a function of scores the query gets half of its gradient."""

    def prepare(
        self, query: Tensor, key: Tensor, here: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        query, key = super().prepare(query, key, here, there)
        return 0.5 * query + 0.5 * query.detach(), key
