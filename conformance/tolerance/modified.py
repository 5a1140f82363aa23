"""The error of scores behind a user's function."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance._golden import golden

from . import model
from .contract import Contract


def modified_error(error: Tensor, attention: golden.Attention, contract: Contract) -> Tensor:
    """What an error of the scores ``[B, H, Lq, Lk]`` becomes, and the function's own roundings.

    The function is looked at within the error of each score; it is taken to be steepest there.
    """
    exact, semantics = attention.modified, attention.semantics
    moved = torch.zeros_like(error)
    for step in model.MODIFICATION_STEPS:
        other = golden.modify(attention.capped + step * error, semantics)
        moved = torch.maximum(moved, (other - exact).abs().nan_to_num_(nan=0.0))
    own = (
        model.MODIFICATION_ROUNDINGS * contract.accumulator_roundoff
        + model.MODIFICATION_STORES * contract.score_roundoff
    )
    size = attention.capped.abs() + exact.abs().masked_fill(torch.isinf(exact), 0.0)
    return moved + own * size
