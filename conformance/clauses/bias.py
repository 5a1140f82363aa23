"""mask.bias*: additive biases join the scaled logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..candidate import Candidate
from ..problem import Problem
from ..recipes import LIVELY
from ..registry import Finding, clause
from ..space import Space, admits_lengths, can_cross, is_fixed
from ..subject import Subject
from ._vocabulary import matches_golden, order_is_free, same_answer

BIASED = Space(mask="always", forms=("bias",), finite_bias="always", extras="maybe")
MOST_COPIES = 4


@clause(
    "mask.bias",
    level="MUST",
    sentence="A bias is added to the scaled logits before the softmax; minus infinity hides a key.",
    source="ONNX Attention-23, input attn_mask; Press et al. 2022 (ALiBi)",
    space=BIASED,
    needs_golden=True,
    counterfactual="the bias left out, its minus infinities kept",
)
def bias(subject: Subject, problem: Problem) -> Finding:
    """Finite biases of size 2, some minus infinity, against the golden."""
    inputs = subject.inputs(problem)
    wording = "a biased answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=inputs.replace(bias=None))


def _counts(candidate: Candidate) -> str:
    if not can_cross(candidate):
        return "a key cannot be repeated without repeating its query"
    if candidate.declaration.position is not None:
        return f"it mixes in {candidate.declaration.position} positions"
    return "its geometry pins the key length" if is_fixed(candidate, "key_length") else ""


@clause(
    "mask.bias-counts",
    level="MUST",
    sentence="Adding log n to a key's bias equals having that key n times.",
    source="exp(s + log n) = n exp(s); ONNX trial: duplicating a key adds log 2 to its bias",
    space=Space(
        mask="always",
        forms=("bias",),
        finite_bias="always",
        values=LIVELY,
        least=(("key_length", 2),),
        share=0.5,
    ),
    counterfactual="the key counted once",
    applies=(_counts, order_is_free),
)
def bias_counts(subject: Subject, problem: Problem) -> Finding:
    """One key with a larger bias against the same key repeated."""
    inputs = subject.inputs(problem)
    if inputs.bias is None:
        return Finding(binding=False)
    length = inputs.geometry.key_length
    chosen = problem.seed % length
    copies = 2 + problem.seed % (MOST_COPIES - 1)
    raised = inputs.bias.double() + math.log(copies) * (torch.arange(length) == chosen).double()
    heavier = inputs.replace(bias=raised.to(inputs.bias.dtype))
    index = torch.arange(length).repeat_interleave(
        torch.where(torch.arange(length) == chosen, copies, 1)
    )

    def spread(mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask.index_select(-1, index)

    repeated = inputs.with_tokens(
        key=inputs.key.index_select(-2, index), value=inputs.value.index_select(-2, index)
    ).replace(keep=spread(inputs.keep), bias=spread(inputs.bias))
    if not admits_lengths(subject.candidate, repeated.geometry):
        return Finding(binding=False)
    return same_answer(
        subject,
        heavier,
        repeated,
        f"a bias of log {copies} does not count a key {copies} times",
        counterfactual=lambda: subject.oracle.output(inputs),
    )
