"""The worst-case bound of the whole layer: projections, attention, output projection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from conformance._golden import golden

from . import model
from .attention_bound import (
    largest_norm,
    largest_size,
    least_one_sided_bound,
    most_core_bound,
    one_sided_bound,
)
from .contract import Contract, gamma
from .spread import Carried


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """Tokens as represented by their integers, with the error of each token.

    Both have the shape of the tokens and are float64. ``unsure`` is one step for a token so near
    the middle of two steps that rounding may have decided otherwise, 0 elsewhere.
    """

    tokens: Tensor
    unsure: Tensor


def quantise(tokens: Tensor, steps: int) -> Quantised:
    """Apply DynamicQuantizeLinear and its inverse to float32 tokens, in its own arithmetic.

    The range is made to contain zero; quotients are rounded half to even, as the operator says.
    """
    if tokens.numel() == 0:
        return Quantised(tokens=tokens.double(), unsure=torch.zeros_like(tokens).double())
    values = tokens.float()
    low, high = values.amin().clamp_max(0.0), values.amax().clamp_min(0.0)
    step = torch.where(low == high, torch.ones_like(high), (high - low) / steps)
    zero = torch.round((-low / step).clamp(0.0, steps))
    quotients = values / step
    integers = (torch.round(quotients) + zero).clamp(0.0, steps) - zero
    to_middle = (quotients - quotients.floor() - 0.5).abs()
    near = to_middle < model.QUANTISATION_TIE
    exact_step = step.double()
    return Quantised(tokens=integers.double() * exact_step, unsure=near.double() * exact_step)


def projection_error(tokens: Tensor, matrix: Tensor, steps: int) -> Tensor:
    """How far quantising may move a projection ``[B, L, out]`` of ``tokens [B, L, in]``, float64.

    Whether the tokens, the ``(out, in)`` matrix, both or neither are quantised.
    """
    quantised = quantise(tokens, steps)
    moved = linear(quantised.tokens - tokens, matrix).abs_()
    moved += linear(quantised.unsure, matrix.abs())
    lost = matrix_error(matrix)
    if lost is None:
        return moved
    sizes = torch.maximum(tokens.abs(), quantised.tokens.abs()).add_(quantised.unsure)
    return moved.add_(linear(sizes, lost))


def activation_error(tokens: Tensor, error: Tensor, reach: float, steps: int) -> Tensor:
    """Return the error of tokens computed within ``error`` of ``tokens`` and then quantised.

    Half a step, and more for the rounding of the quotient. The range is that of the computed
    tokens; ``reach`` is the size of tokens that may be anything up to it.
    """
    high = max(float((tokens + error).amax()), reach, 0.0)
    low = min(float((tokens - error).amin()), -reach, 0.0)
    return error + (high - low) / steps * model.QUANTISATION_ERROR


def matrix_error(matrix: Tensor) -> Tensor | None:
    """Return the error of each entry of an ``(out, in)`` matrix from its integer's meaning.

    None if the matrix consists of integers' meanings already. Otherwise half a step of the coarsest
    format, which has 7 bits, over the whole matrix: a scale for each row is finer.
    """
    if matrix.numel() == 0 or _is_on_grid(matrix.reshape(1, -1)):
        return None
    half = torch.full_like(matrix, float(matrix.abs().amax()) / model.FEWEST_WEIGHT_STEPS)
    rows = torch.tensor([_is_on_grid(row) for row in matrix.split(1)])
    half[rows] = 0.0
    return None if bool(rows.all()) else half


def _is_on_grid(entries: Tensor) -> bool:
    """Tell whether entries ``[1, N]`` are multiples of a step, as quantised to 7 or 8 bits.

    Multiples without a common divisor: small integers lie on many grids, and would be moved by a
    quantiser choosing another grid.
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
    """Return for each count the largest distance to a multiple of ``largest / count``, in steps."""
    levels = entries.reshape(1, -1) * (counts / largest).reshape(-1, 1)
    return (levels - torch.round(levels)).abs().amax(dim=1)


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
    """Bound the error of each output of a projection; None if there is no error at all.

    ``tokens`` is ``[B, L, in]``, ``matrix`` ``(out, in)`` and ``bias`` ``[out]``, all float64;
    ``incoming`` bounds the error the ``tokens`` already carry, ``result`` is the exact output if
    known, ``stored`` the stage of the last rounding. Returns float64 ``[B, L, out]``.

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
    """Tell whether each output is one input times a signed power of two, with nothing added."""
    outputs, inputs = matrix.shape
    if inputs == 0 or int(torch.count_nonzero(matrix)) != outputs:
        return False
    largest = matrix.abs().amax(dim=1)
    mantissa = torch.frexp(largest).mantissa
    alone = bool((mantissa == 0.5).all())  # noqa: PLR2004  (frexp's mantissa of a power of two)
    return alone and (bias is None or not bool(bias.any()))


def layer_bound(layer: golden.MultiHeadAttention, contract: Contract) -> Tensor:
    """How far each element of a conforming answer may be from ``layer.output``.

    Returns float64 ``[B, Lq, Eo]``, finite and not negative. Derived in docs/tolerance.md.
    """
    if layer.output.numel() == 0:
        return torch.zeros_like(layer.output)
    errors = head_errors(layer, contract, layer.projected)
    bound = one_sided_bound(layer.core, contract, errors)
    merged = golden.merge_heads(bound, layer.core.semantics)
    return _output_error(layer, merged, contract).mul_(contract.sides)


def least_layer_bound(layer: golden.MultiHeadAttention, contract: Contract) -> Tensor | None:
    """A part of :func:`layer_bound` that is soon derived, as of :func:`least_core_bound`."""
    least = least_one_sided_bound(layer.core, contract)
    if least is None or contract.activation_steps:
        return None
    merged = golden.merge_heads(least, layer.core.semantics)
    return _output_error(layer, merged, contract).mul_(contract.sides)


def most_layer_bound(layer: golden.MultiHeadAttention, contract: Contract) -> float:
    """A number that no element of :func:`layer_bound` exceeds, as of :func:`most_core_bound`."""
    weights, merged = layer.weights, layer.merged
    if contract.activation_steps:
        return math.inf
    matrices = (weights.q, weights.k, weights.v)
    biases = (weights.q_bias, weights.k_bias, weights.v_bias)
    carried = [
        _most_projected(*each, contract)
        for each in zip(layer.tokens, matrices, biases, layer.projected, strict=True)
    ]
    of_heads = most_core_bound(layer.core, contract, carried)
    if weights.o is None or not math.isfinite(of_heads):
        return of_heads
    matrix = weights.o[:, : merged.shape[-1]]
    incoming, output = of_heads / contract.sides, layer.output
    if layer.core.semantics.empty_rows == "nan":
        merged, output = merged.nan_to_num(nan=0.0), output.nan_to_num(nan=0.0)
    most = _most_projected(merged, matrix, weights.o_bias, output, contract, incoming)
    most *= contract.sides * (1.0 + model.UNIT_ROUNDOFF["float32"])
    return math.inf if math.isnan(most) else most


def _most_projected(
    tokens: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    result: Tensor,
    contract: Contract,
    incoming: float = 0.0,
) -> float:
    """Return an upper limit of all elements of :func:`projection_bound`.

    A product is no larger than that of the vectors' lengths.
    """
    unit, terms = contract.unit_roundoff, matrix.shape[1]
    root = math.sqrt(terms)
    relative = gamma(terms + 1, contract.accumulator_roundoff) + contract.operand_error
    lost = root * contract.accumulator_underflow / relative if relative else 0.0
    size = (largest_norm(tokens) + lost) * relative + root * incoming * (1.0 + relative)
    added = 0.0 if bias is None else largest_size(bias)
    error = size * (largest_norm(matrix) + lost) + added * relative
    product = largest_size(result) + added
    error = (error * (1.0 + unit) + product * unit) * (1.0 + unit) + product * unit
    return error + terms * contract.accumulator_underflow + 2.0 * contract.underflow


def head_errors(
    layer: golden.MultiHeadAttention,
    contract: Contract,
    projected: Sequence[Tensor | None] = (None, None, None),
) -> Carried:
    """The errors of projected query, key and value heads.

    ``projected`` are the exact projections ``[B, L, H*D]`` where they are known.
    """
    core, weights, semantics = layer.core, layer.weights, layer.core.semantics

    def error_of(place: int, matrix: Tensor, bias: Tensor | None, heads: Tensor) -> Tensor | None:
        tokens = layer.tokens[place]
        error = projection_bound(tokens, matrix, bias, contract, result=projected[place])
        steps = contract.at("quantisation").activation_steps
        if steps:  # what the integers stand for is rounded, too
            integers = quantise(tokens, steps).tokens
            moved = projection_error(tokens, matrix, steps)
            for rounded in (error, projection_bound(integers, matrix, bias, contract)):
                if rounded is not None:
                    moved = moved + rounded
            error = moved
        if error is None:
            return None
        split = golden.split_heads(error, matrix.shape[0] // heads.shape[-1], semantics)
        return golden.repeat_heads(split, heads.shape[1], semantics)

    errors = Carried(
        query=error_of(0, weights.q, weights.q_bias, core.query),
        key=error_of(1, weights.k, weights.k_bias, core.key),
        value=error_of(2, weights.v, weights.v_bias, core.value),
    )
    return errors.with_exact_key() if "bias_k" in core.learned else errors


def _output_error(layer: golden.MultiHeadAttention, incoming: Tensor, contract: Contract) -> Tensor:
    weights, merged, output = layer.weights, layer.merged, layer.output
    if weights.o is None:
        return incoming
    matrix, bias = weights.o[:, : merged.shape[-1]], weights.o_bias
    if layer.core.semantics.empty_rows == "nan":
        merged, output = merged.nan_to_num(nan=0.0), output.nan_to_num(nan=0.0)
    steps = contract.at("quantisation").activation_steps
    lost = None
    if steps:
        incoming = activation_error(merged, incoming, _reach(layer.core), steps)
        lost = matrix_error(matrix)
    error = projection_bound(
        merged, matrix, bias, contract, incoming=incoming, result=output, stored="rounding"
    )
    if lost is not None and error is not None:
        error += linear(merged.abs() + incoming, lost)
    if error is None:  # for the type checker: with an incoming error there is always one
        return incoming
    return error


def _reach(core: golden.Attention) -> float:
    """Return the largest size of rows without a key under any rule: they are among the values."""
    if not bool(core.empty.any()):
        return 0.0
    return float(core.value.abs().nan_to_num(nan=0.0).amax())
