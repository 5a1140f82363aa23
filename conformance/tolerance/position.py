"""The bound of a sinusoidal position encoding that is added to its input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance._golden import golden

from .model import UNIT_ROUNDOFF

# Roundings on the way to a frequency 10000^(-2j/d): the exponent, the logarithm of the base and their
# product are each rounded once and pass through an exponential, which turns a relative error of its
# argument (at most log 10000) into that many relative errors of its result.
EXPONENT_ROUNDINGS = 3
# The exponential itself (two units in the last place), a division and the product with the position.
ANGLE_ROUNDINGS = 6
# Sine and cosine: two units in the last place of a number below one.
SINE_ROUNDINGS = 4


def position_bound(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """How far ``tokens + positions`` computed in a dtype may be from the exact sum.

    ``tokens`` is ``[..., L, E]``; the result is float64 of that shape. The error of the angle grows
    with the position: at position 1000 float32 knows the fastest sine to about 1e-3.
    """
    length, width = tokens.shape[-2], tokens.shape[-1]
    unit = UNIT_ROUNDOFF[str(dtype).removeprefix("torch.")]
    angle = torch.arange(length, dtype=torch.float64)[:, None] * golden.frequencies(width)
    relative = (EXPONENT_ROUNDINGS * math.log(10000.0) + ANGLE_ROUNDINGS) * unit
    table = (relative * angle + SINE_ROUNDINGS * unit).repeat_interleave(2, dim=-1)
    total = table + unit * (tokens.double().abs() + 1.0 + table)
    # A float64 candidate is compared with a golden that carries errors of the same size.
    return total * 2.0 if dtype == torch.float64 else total
