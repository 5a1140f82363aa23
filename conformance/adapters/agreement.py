"""Whether a module's answer is the golden one, within a worst-case bound on rounding.

The bound is the first-order worst case of projections, dot products, softmax and weighted sum, each
of n terms erring by gamma_n = n u / (1 - n u) (Higham, "Accuracy and Stability of Numerical
Algorithms", section 3.1); twice, since the golden rounds too.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from .packing import Sizes

# Evaluating exp and dividing by the sum: a few roundings an element, and the error of the argument.
_SOFTMAX_ROUNDINGS: Final = 8


def agrees(
    answer: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: golden.ProjectionWeights,
    sizes: Sizes,
    semantics: golden.Semantics,
    unit: float,
) -> bool:
    """Whether ``answer [B, Lq, Eo]`` is multi-head attention of the inputs, up to rounding by ``unit``."""
    evaluated = golden.multi_head_attention(
        *inputs,
        weights,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        semantics=semantics,
    )
    if answer.shape != evaluated.output.shape:
        return False
    error = (answer.double() - evaluated.output).abs()
    return bool((error <= 2 * rounding_bound(inputs, weights, evaluated, sizes, semantics, unit)).all())


def rounding_bound(
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: golden.ProjectionWeights,
    evaluated: golden.MultiHeadAttention,
    sizes: Sizes,
    semantics: golden.Semantics,
    unit: float,
) -> Tensor:
    """The worst rounding error of one evaluation, elementwise: float64 ``[B, Lq, Eo]``."""
    core = evaluated.core
    query, key, value = (
        _heads(_linear(tokens, matrix, bias, unit), heads, sizes, semantics)
        for tokens, matrix, bias, heads in zip(
            inputs,
            (weights.q, weights.k, weights.v),
            (weights.q_bias, weights.k_bias, weights.v_bias),
            (sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads),
            strict=True,
        )
    )
    products = _products(query, core.key) + _products(core.query, key)
    rounded = _gamma(sizes.head_size + 4, unit) * _products(core.query, core.key)
    logits = abs(core.scale) * (products + rounded)
    logits = logits + _SOFTMAX_ROUNDINGS * unit * (1 + core.scores.abs())
    relative = torch.expm1(2 * logits.amax(dim=-1, keepdim=True))
    relative = relative + _gamma(core.key.shape[-2] + _SOFTMAX_ROUNDINGS, unit)
    error = relative * (core.weights @ core.value.abs()) + (1 + relative) * (core.weights @ value)
    if weights.o is None:
        return golden.merge_heads(error, semantics)
    merged, carried = evaluated.merged, golden.merge_heads(error, semantics)
    return carried @ weights.o.double().abs().T + _linear(merged, weights.o, weights.o_bias, unit)


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit)


def _linear(tokens: Tensor, matrix: Tensor, bias: Tensor | None, unit: float) -> Tensor:
    """The rounding error of ``x W^T + b`` for exact ``x``."""
    size = tokens.double().abs() @ matrix.double().abs().T
    size = size if bias is None else size + bias.double().abs()
    return _gamma(matrix.shape[1] + 2, unit) * size


def _heads(error: Tensor, heads: int, sizes: Sizes, semantics: golden.Semantics) -> Tensor:
    split = golden.split_heads(error, heads, semantics)
    return golden.repeat_heads(split, sizes.num_heads, semantics)


def _products(left: Tensor, right: Tensor) -> Tensor:
    return left.abs() @ right.abs().transpose(-1, -2)
