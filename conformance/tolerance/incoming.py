"""What operands of the backward pass carry from earlier steps, and what its contract allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from . import model
from .contract import Contract
from .golden_gradients import GoldenGradients


@dataclass(frozen=True, kw_only=True, eq=False)
class Incoming:
    """What the heads and the output gradient already carry, as errors or as variances.

    ``query [B, H, Lq, D]``, ``key [B, H, Lk, D]``, ``value [B, H, Lk, Dv]`` and ``output_gradient
    [B, H, Lq, Dv]``; None means that they are exact.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    output_gradient: Tensor | None = None

    def only_seen(self, gradients: GoldenGradients) -> Incoming:
        """The same, but nothing for keys that no query sees."""
        seen = gradients.live.only_seen
        return replace(
            self,
            key=None if self.key is None else seen(self.key),
            value=None if self.value is None else seen(self.value),
        )


def backward_contract(contract: Contract) -> Contract:
    """The contract with the exponential that recomputes weights."""
    return replace(contract, exp_error=max(contract.exp_error, model.BACKWARD_EXP_ERROR))


def score_gradient_stores(gradients: GoldenGradients, contract: Contract) -> int:
    """How often a gradient of a score is rounded to the working dtype."""
    if not contract.score_roundoff:
        return model.SCORE_GRADIENT_STORES
    capped = model.SOFTCAP_STORES if gradients.attention.softcap is not None else 0
    modified = model.MODIFICATION_STORES if gradients.function_slope is not None else 0
    return model.SCORE_GRADIENT_STORES + model.EAGER_SCORE_GRADIENT_STORES + capped + modified
