"""numerics.accumulation: long sums are added up as precisely as is declared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..oracle.comparison import moves
from ..problems.inputs import Inputs
from ..problems.materialise import TORCH_DTYPES
from ..problems.problem import Problem
from ..problems.space import Space, admits_lengths
from ._measuring import measures_golden
from ._signal import through_output
from .registry import Finding, clause
from .subject import Subject

Round = Callable[[Tensor], Tensor]
# Terms of one sign and one size, as many as leave an accumulator of half precision behind.
LONG: Final = Space(
    values=("long-sums", "long-products"),
    least=(("key_length", 2),),
    preferred=(("key_length", 1025), ("head_size", 128)),
    share=0.1,
)
# What sums must not be rounded to after every part of them.
COARSE: Final = {
    "float64": torch.float32,
    "float32": torch.bfloat16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Kernels add up a few terms at once: this many parts of a sum are each rounded.
PARTS: Final = 64
FEW: Final = 5


@clause(
    "numerics.accumulation",
    level="MUST",
    sentence=(
        "Sums over many keys, and over many channels of large heads, are as exact as the declared "
        "accumulator allows, however alike their terms are."
    ),
    source="Higham 2002, section 4.2; metal-flash-attention#8, #13: sums in half precision",
    space=LONG,
    needs_golden=True,
    counterfactual="sums rounded to a coarser format after each of 64 parts",
    subtle=True,
)
def accumulation(subject: Subject, problem: Problem) -> Finding:
    """A thousand keys with positive values, or products of positive numbers."""
    inputs = subject.inputs(problem)
    if problem.values == "long-products":
        inputs = _with_few_keys(subject, inputs)
    finding = measures_golden(subject, inputs, "a long sum is inexact", signal=False)
    known = subject.yardstick(inputs)
    binding = moves(known.output, _coarsely(subject, inputs), known.bound, known.judged)
    return dataclasses.replace(finding, binding=finding.binding and binding)


def _with_few_keys(subject: Subject, inputs: Inputs) -> Inputs:
    """The first keys alone, where that can be asked: over many the errors of logits average out."""
    few = inputs.geometry.replace(key_length=min(FEW, inputs.geometry.key_length))
    if inputs.mode == "self" or not admits_lengths(subject.candidate, few):
        return inputs
    key, value = (x[..., : few.key_length, :].contiguous() for x in (inputs.key, inputs.value))
    return inputs.with_tokens(key=key, value=value)


def _coarsely(subject: Subject, inputs: Inputs) -> Tensor:
    """The answer of somebody who adds up in a coarse format."""
    known = subject.golden(inputs)
    core, working = known.core, TORCH_DTYPES[subject.dtype]
    coarse = COARSE[subject.dtype]

    def rounded(partial: Tensor) -> Tensor:
        return partial.to(working).to(coarse).double()

    keys = core.key.transpose(-1, -2)
    moved = core.scale * (_added_up(core.query, keys, rounded) - core.query @ keys)
    weights = golden.softmax(core.logits + moved)
    return through_output(known, inputs, _added_up(weights, core.value, rounded))


def _added_up(left: Tensor, right: Tensor, rounded: Round) -> Tensor:
    """A product of matrices, rounded after each part of its sums."""
    step = max(1, math.ceil(left.shape[-1] / PARTS))
    total = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    for first in range(0, left.shape[-1], step):
        part = left[..., first : first + step] @ right[..., first : first + step, :]
        total = rounded(total + part)
    return total
