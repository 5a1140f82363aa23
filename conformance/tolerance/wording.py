"""A precision contract in words, for people who want to know what their declaration allows."""

from __future__ import annotations

import math

from . import model
from .contract import Contract


def describe(contract: Contract) -> list[str]:
    """What a contract allows, one sentence a freedom, in the order of the computation."""
    told = [
        f"tensors are rounded to a relative error of {_power(contract.unit_roundoff)}",
        f"products are added up with one of {_power(contract.accumulator_roundoff)} a step",
    ]
    if contract.activation_steps:
        told.append(
            f"tokens are rounded to {contract.activation_steps} steps of their range before each "
            "projection, its matrix to 7 bits or more"
        )
    if contract.operand_roundoff:
        told.append(f"operands of products are rounded to {_power(contract.operand_roundoff)}")
    told.append(_scaling(contract))
    told.append(_scores(contract))
    told.append(
        f"exp is accurate to {contract.exp_error:g} steps of the sum, in blocks of "
        f"{contract.key_block} keys or more"
    )
    told.append(_weights(contract))
    return told


def _scaling(contract: Contract) -> str:
    if contract.pre_scaling_roundings < model.PRE_SCALING_ROUNDINGS:
        return "the query may be scaled before its product with the key"
    return (
        "query and key may be scaled before their product, the scale being a number of the "
        "tensors' dtype (a power of four rounds the query only)"
    )


def _scores(contract: Contract) -> str:
    if contract.score_roundoff:
        return f"scores are stored with a relative error of {_power(contract.score_roundoff)}"
    return "scores stay as precise as the sums"


def _weights(contract: Contract) -> str:
    if contract.weight_roundoff:
        rounded = _power(contract.weight_roundoff)
        return f"weights are rounded to {rounded} before they meet the values"
    return "weights stay as precise as the sums"


def _power(roundoff: float) -> str:
    """A roundoff as a power of two, with its format where it is one's."""
    formats = [name for name, unit in model.UNIT_ROUNDOFF.items() if unit == roundoff]
    power = f"2^{math.log2(roundoff):g}"
    return f"{power} ({formats[0]})" if formats else power
