"""The error of a linear map ``x W^T + b`` in working precision, worst case."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from .contract import Contract, gamma


def projection_bound(
    tokens: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    contract: Contract,
    *,
    incoming: Tensor | None = None,
    result: Tensor | None = None,
    stored: str = "projection",
) -> Tensor | None:
    """Bound on the error of each output of a projection; None where there is no error at all.

    ``tokens`` is ``[B, L, in]``, ``matrix`` ``(out, in)`` and ``bias`` ``[out]``, all float64;
    ``incoming`` bounds the error that ``tokens`` already carry, ``result`` is the exact output
    where it is known, ``stored`` the stage to which the last rounding belongs. Returns float64
    ``[B, L, out]``.

    The product of n terms and the addition of the bias make ``gamma(n + 1)`` of the sum of
    magnitudes (Higham 2002, section 3.1); the product and the sum are then rounded to the working
    dtype. A matrix that only moves and doubles numbers makes no error.
    """
    last = contract.at(stored)
    contract = contract.at("projection")
    if contract.operand_roundoff == 0.0 and is_exact(matrix, bias):
        return None if incoming is None else linear(incoming, matrix.abs()) + last.underflow
    unit = contract.unit_roundoff
    terms = matrix.shape[1]
    relative = gamma(terms + 1, contract.accumulator_roundoff) + contract.operand_error
    # Operands that underflow cost an absolute error times their partners: it joins the magnitudes.
    lost = contract.accumulator_underflow / relative if relative else 0.0
    sizes = tokens.abs().add_(lost).mul_(relative)
    if incoming is not None:
        sizes.add_(incoming, alpha=1.0 + relative)
    magnitudes = matrix.abs().add_(lost)
    error = linear(sizes, magnitudes, None if bias is None else bias.abs().mul_(relative))
    if result is None:
        result = linear(tokens, matrix, bias)
    if bias is not None:
        error.mul_(1.0 + unit).add_((result - bias).abs_(), alpha=unit)
    error.mul_(1.0 + last.unit_roundoff).add_(result.abs(), alpha=last.unit_roundoff)
    underflow = contract.underflow + last.underflow
    return error.add_(terms * contract.accumulator_underflow + underflow)


def is_exact(matrix: Tensor, bias: Tensor | None) -> bool:
    """Whether each output is one input times a power of two up to sign, with nothing added."""
    outputs, inputs = matrix.shape
    if inputs == 0 or int(torch.count_nonzero(matrix)) != outputs:
        return False
    largest = matrix.abs().amax(dim=1)
    mantissa = torch.frexp(largest).mantissa
    alone = bool((mantissa == 0.5).all())  # noqa: PLR2004  (frexp's mantissa of a power of two)
    return alone and (bias is None or not bool(bias.any()))
