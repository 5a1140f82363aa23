"""The bound of a sinusoidal position encoding that is added to its input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance._golden import golden

from . import model


def position_bound(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """How far ``tokens + positions`` computed in a dtype may be from the exact sum.

    ``tokens`` is ``[..., L, E]``; the result is float64 of that shape. The error of the angle grows
    with the position: at position 1000 float32 knows the fastest sine to about 1e-3.
    """
    length, width = tokens.shape[-2], tokens.shape[-1]
    unit = model.UNIT_ROUNDOFF[str(dtype).removeprefix("torch.")]
    angle = torch.arange(length, dtype=torch.float64)[:, None] * golden.frequencies(width)
    relative = (model.FREQUENCY_ROUNDINGS * math.log(10000.0) + model.ANGLE_ROUNDINGS) * unit
    table = (relative * angle + model.SINE_ROUNDINGS * unit).repeat_interleave(2, dim=-1)
    total = table + unit * (tokens.double().abs() + 1.0 + table)
    # A float64 candidate is compared with a golden that carries errors of the same size.
    return total * 2.0 if dtype == torch.float64 else total
