"""What 8-bit integers in a layer's projections cost: ``precision="int8-dynamic"``.

Tokens are quantised as the ONNX operator DynamicQuantizeLinear says, anew in every call and for the
whole tensor; matrices were, once and for all, when the graph was made. Products of integers are
exact. Derived in docs/tolerance.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from . import model


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """Tokens as their integers stand for them, and by how much each may differ from that.

    Both have the shape of the tokens and are float64. ``unsure`` is one step where the token lies
    so near the middle of two that rounding may have decided otherwise, 0 elsewhere.
    """

    tokens: Tensor
    unsure: Tensor


def quantise(tokens: Tensor, steps: int) -> Quantised:
    """DynamicQuantizeLinear and back for float32 tokens of any shape, in its own arithmetic.

    The range is made to contain zero; quotients are rounded half to even, as the operator says.
    """
    if tokens.numel() == 0:
        return Quantised(tokens=tokens.double(), unsure=torch.zeros_like(tokens).double())
    given = tokens.float()
    low, high = given.amin().clamp_max(0.0), given.amax().clamp_min(0.0)
    step = torch.where(low == high, torch.ones_like(high), (high - low) / steps)
    zero = torch.round((-low / step).clamp(0.0, steps))
    quotients = given / step
    integers = (torch.round(quotients) + zero).clamp(0.0, steps) - zero
    to_middle = (quotients - quotients.floor() - 0.5).abs()
    near = to_middle < model.QUANTISATION_TIE
    exact_step = step.double()
    return Quantised(tokens=integers.double() * exact_step, unsure=near.double() * exact_step)


def projection_error(tokens: Tensor, matrix: Tensor, steps: int) -> Tensor:
    """How far quantising may move a projection ``[B, L, out]`` of ``tokens [B, L, in]``, float64.

    Whether the tokens, the ``(out, in)`` matrix, both or neither are quantised.
    """
    found = quantise(tokens, steps)
    moved = linear(found.tokens - tokens, matrix).abs_()
    moved += linear(found.unsure, matrix.abs())
    lost = matrix_error(matrix)
    if lost is None:
        return moved
    sizes = torch.maximum(tokens.abs(), found.tokens.abs()).add_(found.unsure)
    return moved.add_(linear(sizes, lost))


def activation_error(tokens: Tensor, error: Tensor, reach: float, steps: int) -> Tensor:
    """The error of tokens that are computed, within ``error`` of ``tokens``, and then quantised.

    Half a step, and more for the rounding of the quotient. The range is that of the computed
    tokens, and ``reach`` where some of them may be anything up to that size.
    """
    high = max(float((tokens + error).amax()), reach, 0.0)
    low = min(float((tokens - error).amin()), -reach, 0.0)
    return error + (high - low) / steps * model.QUANTISATION_ERROR


def matrix_error(matrix: Tensor) -> Tensor | None:
    """How far each entry of an ``(out, in)`` matrix may be from its integer's meaning.

    None where it is what integers stand for already. Otherwise half a step of the coarsest format,
    which has 7 bits, over the whole matrix: a scale for each row is finer.
    """
    if matrix.numel() == 0 or _is_on_grid(matrix.reshape(1, -1)):
        return None
    half = torch.full_like(matrix, float(matrix.abs().amax()) / model.FEWEST_WEIGHT_STEPS)
    rows = _rows_on_grids(matrix)
    half[rows] = 0.0
    return None if bool(rows.all()) else half


def _rows_on_grids(matrix: Tensor) -> Tensor:
    """Which rows are multiples of a step of their own."""
    return torch.tensor([_is_on_grid(row) for row in matrix.split(1)])


def _is_on_grid(entries: Tensor) -> bool:
    """Whether entries ``[1, N]`` are multiples of a step as quantising to 7 or 8 bits makes them.

    Multiples without a common divisor: small integers lie on many grids, and would be moved by a
    quantiser that chooses another one.
    """
    largest = float(entries.abs().amax())
    if entries.numel() < model.FEWEST_ON_GRID or largest == 0.0:
        return largest == 0.0
    counts = torch.arange(model.FEWEST_LEVELS, model.MOST_LEVELS + 1).double()
    few = entries[0, : model.GRID_SAMPLE]
    likely = counts[_off_grid(few, largest, counts) <= model.OFF_GRID]
    for count in likely:
        if float(_off_grid(entries[0], largest, count.reshape(1))) > model.OFF_GRID:
            continue
        levels = torch.round(entries[0] * (count / largest)).long()
        return math.gcd(*levels.unique().tolist()) == 1
    return False


def _off_grid(entries: Tensor, largest: float, counts: Tensor) -> Tensor:
    """The largest distance to a multiple of ``largest / count``, in such steps, for each count."""
    levels = entries.reshape(1, -1) * (counts / largest).reshape(-1, 1)
    return (levels - torch.round(levels)).abs().amax(dim=1)
