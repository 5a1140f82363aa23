"""The statistical error of a linear map ``x W^T + b`` in working precision."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from . import model
from .contract import Contract
from .projection import is_exact
from .spread import Spread


def moves_exactly(matrix: Tensor, bias: Tensor | None, contract: Contract) -> bool:
    """Whether a projection makes no error: it only moves and doubles numbers that stay as given."""
    return contract.operand_roundoff == 0.0 and is_exact(matrix, bias)


def squared_terms(
    tokens: Tensor, matrix: Tensor, contract: Contract, carried: Tensor | None = None
) -> Tensor:
    """The errors of products of ``tokens [B, L, in]`` and ``matrix (out, in)``: ``[B, L, out]``.

    Partial sums walk at random, products round once, operands may be rounded; ``carried`` is the
    variance of the tokens' own errors. Underflow joins the magnitudes. All float64.
    """
    walk = model.WALK * matrix.shape[1] + model.PRODUCTS
    factor = walk * contract.accumulator_roundoff**2 + 2.0 * contract.operand_roundoff**2
    lost = (contract.accumulator_underflow / contract.accumulator_roundoff) ** 2
    squares = tokens.square().add_(lost).mul_(factor)
    if carried is not None:
        squares += carried
    return linear(squares, matrix.square().add_(lost))


def rounded_variance(
    terms: Tensor, result: Tensor, bias: Tensor | None, inputs: int, contract: Contract
) -> Tensor:
    """The variance of a stored projection, its last rounding included.

    ``terms`` are the squared errors of the products, ``result`` is ``y`` (both of one shape, as
    tokens or as heads) and ``bias`` broadcasts to it.
    """
    drift = model.DRIFT * inputs * contract.accumulator_roundoff**2
    last = last_rounding(result, bias, inputs, contract)
    return terms.addcmul(result, result, value=drift).addcmul_(last, last)


def last_rounding(result: Tensor, bias: Tensor | None, inputs: int, contract: Contract) -> Tensor:
    """The product and its sum with the bias are each stored; what underflows is lost for good."""
    size = result.abs()
    if bias is not None:
        size += (result - bias).abs_()
    underflow = 2.0 * contract.underflow + inputs * contract.accumulator_underflow
    return size.mul_(contract.unit_roundoff).add_(underflow)


def projected_spread(
    incoming: Spread,
    tokens: Tensor,
    result: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    contract: Contract,
) -> Spread:
    """The error of ``result = tokens W^T + b [B, L, out]`` for tokens that carry ``incoming``.

    Random errors add in quadrature and certain ones in full; the slope is mapped with its sign.
    """
    magnitudes = matrix.abs()
    certain = linear(incoming.linear, magnitudes)
    slope = linear(incoming.slope, matrix)
    if moves_exactly(matrix, bias, contract):
        variance, last = linear(incoming.variance, matrix.square()), incoming.last
        return Spread(variance=variance, last=linear(last, magnitudes), linear=certain, slope=slope)
    carried = torch.addcmul(incoming.variance, incoming.last, incoming.last)
    inputs = matrix.shape[1]
    variance = squared_terms(tokens, matrix, contract, carried)
    drift = model.DRIFT * inputs * contract.accumulator_roundoff**2
    return Spread(
        variance=variance.addcmul_(result, result, value=drift),
        last=last_rounding(result, bias, inputs, contract),
        linear=certain,
        slope=slope,
    )
