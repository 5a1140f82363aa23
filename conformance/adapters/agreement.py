"""Whether a module's answer is the golden one, within the project's derived worst-case bound."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..declare.promises import declare
from ..tolerance import contract_for, layer_bound
from .packing import Sizes

Inputs = tuple[Tensor, Tensor, Tensor]


def evaluate(
    inputs: Inputs,
    weights: golden.ProjectionWeights,
    sizes: Sizes,
    semantics: golden.Semantics,
) -> golden.MultiHeadAttention:
    """The golden layer on query, key and value."""
    return golden.multi_head_attention(
        *inputs,
        weights,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        semantics=semantics,
    )


def distance(answer: Tensor, evaluated: golden.MultiHeadAttention) -> float:
    """The largest difference from the golden output; infinite for another shape or NaN."""
    if answer.shape != evaluated.output.shape:
        return torch.inf
    difference = (answer.double() - evaluated.output).abs().max().item()
    return torch.inf if difference != difference else difference  # noqa: PLR0124 (NaN)


def agrees(
    answer: Tensor,
    inputs: Inputs,
    weights: golden.ProjectionWeights,
    sizes: Sizes,
    semantics: golden.Semantics,
    dtype: str,
) -> bool:
    """Whether ``answer [B, Lq, Eo]`` is golden for the inputs, as computed in ``dtype``."""
    evaluated = evaluate(inputs, weights, sizes, semantics)
    if answer.shape != evaluated.output.shape:
        return False
    contract = contract_for(declare("layer"), dtype, evaluated.core.scale)
    bound = layer_bound(evaluated, *inputs, weights, semantics, contract)
    return bool(((answer.double() - evaluated.output).abs() <= bound).all())
