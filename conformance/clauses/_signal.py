"""Whether an example could tell attention from an answer that needs none."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._golden import golden
from ..oracle.comparison import moves
from ..oracle.oracle import Golden, known_weights
from ..problems.inputs import Inputs

# An answer that is not attention must be wrong by so many bounds somewhere. In bfloat16, whose
# bounds are eight times those of float16, weights of normalised heads are too even for ten.
SIGNAL = 10.0
SIGNAL_IN_BFLOAT16 = 4.0


def has_signal(known: Golden, inputs: Inputs, bound: Tensor, judged: Tensor) -> bool:
    """Zeros, the mean of the attended values, and the first key's value are all clearly wrong."""
    coarse = inputs.query.dtype == torch.bfloat16
    wide = (SIGNAL_IN_BFLOAT16 if coarse else SIGNAL) * bound
    return all(moves(known.output, other, wide, judged) for other in _lazy_answers(known, inputs))


def _lazy_answers(known: Golden, inputs: Inputs) -> Iterator[Tensor]:
    yield torch.zeros_like(known.output)
    core = known.core
    if core.value.shape[-2] == 0:
        return
    counts = core.allowed.sum(dim=-1, keepdim=True).clamp_min(1)
    yield through_output(known, inputs, (core.allowed.double() @ core.value) / counts)
    yield through_output(known, inputs, core.value[..., :1, :].expand(core.output.shape))


def through_output(known: Golden, inputs: Inputs, heads: Tensor) -> Tensor:
    """What the answer is when the heads return this: themselves, or behind a layer's projection."""
    if isinstance(known.evaluation, golden.Attention):
        return heads
    point, weights = known.core.semantics, known_weights(inputs)
    merged = golden.merge_heads(heads, point)
    if weights.o is None:
        return merged
    # Heads that are concatenated along the tokens meet the first columns of the matrix alone.
    matrix = weights.o[:, : merged.shape[-1]]
    return golden.project(merged, matrix, weights.o_bias if point.output_bias else None)
