"""Which stage of a computation a bound allows most: what one reads next to an error."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .contract import STAGES, Contract


def shares(
    bound: Callable[[Contract], Tensor], contract: Contract, index: tuple[int, ...]
) -> dict[str, float]:
    """The part of each stage in the bound of one element, largest first; they sum to 1.

    ``bound`` evaluates the worst-case bound under a contract. A stage counts by the bound that it
    would have alone. Empty when nothing rounds.
    """
    stages = [stage for stage in STAGES if stage != "quantisation" or contract.activation_steps]
    alone = {stage: float(bound(contract.only(stage))[index]) for stage in stages}
    total = sum(alone.values())
    if total <= 0.0:
        return {}
    ordered = sorted(alone, key=lambda stage: -alone[stage])
    return {stage: alone[stage] / total for stage in ordered}
