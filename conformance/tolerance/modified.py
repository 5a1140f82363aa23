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
    length = attention.given_key.shape[-2]  # behind the keys a sink, which no function gets
    capped, exact = attention.capped[..., :length], attention.modified[..., :length]
    given, moved = error[..., :length], torch.zeros_like(exact)
    for step in model.MODIFICATION_STEPS:
        other = golden.modify(capped + step * given, attention.semantics)
        moved = torch.maximum(moved, (other - exact).abs().nan_to_num_(nan=0.0))
    size = capped.abs() + exact.abs().masked_fill(torch.isinf(exact), 0.0)
    return torch.cat([moved + function_unit(contract) * size, error[..., length:]], dim=-1)


def function_unit(contract: Contract) -> float:
    """The roundings within a user's function, as one relative error."""
    return (
        model.MODIFICATION_ROUNDINGS * contract.accumulator_roundoff
        + model.MODIFICATION_STORES * contract.score_roundoff
    )
