"""mask.bias*: additive biases join the scaled logits, also far below the scores."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from ..declare.candidate import Candidate
from ..oracle.headroom import representable_output
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, admits_lengths, can_cross, is_fixed
from .judging import (
    attends_keys_alone,
    finite_limit,
    first_place,
    matches_golden,
    order_is_free,
    same_answer,
)
from .rearranging import read_heads
from .registry import Finding, clause, violated
from .subject import Subject

BIASED = Space(mask="always", forms=("bias",), finite_bias="always", extras="maybe")
MOST_COPIES = 4
# Finite biases that some take for masks: in use as fills, the first in T5, BERT and Swin.
FAR: Final = (-4e4, -1e9, -1.2e4, -1e30)
# Kernels that work to the base 2 multiply logits by log2(e), and by nothing else.
ROOM: Final = math.log(2.0)
# The share of rows, and of the keys of other rows, with a bias far below.
LOWERED: Final = 0.4
# Problems with biases far below the scores. Values near each other show an answer of zeros.
FAR_BIASES = Space(
    mask="always",
    forms=("bias",),
    finite_bias="always",
    patterns=("full", "dense", "random"),
    values=("normal", "long-sums"),
    least=(("key_length", 2),),
    share=0.5,
)


@clause(
    "mask.bias",
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
    sentence="Adding log n to a key's bias equals having that key n times.",
    source="exp(s + log n) = n exp(s); by definition, n equal terms in both sums",
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
    """One key with its bias raised by log n against n copies of the unchanged key."""
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
    ).replace(
        keep=spread(inputs.keep),
        bias=spread(inputs.bias),
        quantised=inputs.quantised and inputs.quantised.taken(keys=index),
    )
    if not admits_lengths(subject.candidate, repeated.geometry):
        return Finding(binding=False)
    wording = f"a bias of log {copies} does not count a key {copies} times"
    return same_answer(subject, heavier, repeated, wording, counterfactual=inputs)


@clause(
    "mask.bias-far-below",
    sentence=(
        "A finite bias far below every score hides nothing by itself: a row that has nothing else "
        "is the softmax over all its keys."
    ),
    source="burn#4697: the row maximum floored at -1e4; pytorch#109517",
    space=FAR_BIASES,
    needs_golden=True,
    counterfactual="such rows taken for rows without keys",
    subtle=True,
)
def bias_far_below(subject: Subject, problem: Problem) -> Finding:
    """Some rows have only biases far below the scores, the remaining rows some of their biases."""
    room = ROOM * finite_limit(subject)
    sizes = [far for far in FAR if -far <= room]
    far = sizes[problem.seed % len(sizes)]
    inputs, lowered = _with_far(subject.inputs(problem), problem, far)
    wording = f"rows whose biases are all near {far:.2g} are wrong"
    judged = _in_range(subject, inputs)
    without_rows = inputs.replace(keep=_without(inputs, lowered))
    return matches_golden(
        subject, inputs, wording, counterfactual=without_rows, judged=judged, signal=False
    )


def _with_far(inputs: Inputs, problem: Problem, far: float) -> tuple[Inputs, Tensor]:
    """Lower all biases of random rows, and a few biases elsewhere, by ``far``.

    Returns the inputs and the lowered rows, bool ``[b, h, q, 1]``. All further rows keep the bias
    of their first kept key.
    """
    if inputs.bias is None or inputs.keep is None:
        msg = "the space of the clause has biases, so the problem has them"
        raise LookupError(msg)
    generator = generator_for(problem, 41)
    rows = torch.rand((*inputs.bias.shape[:-1], 1), generator=generator) < LOWERED
    rows.view(-1)[problem.seed % max(rows.numel(), 1) :][:1] = True
    some = torch.rand(inputs.bias.shape, generator=generator) < LOWERED
    first = inputs.keep & (inputs.keep.cumsum(dim=-1) == 1)  # the first kept key, which stays
    lowered = rows | (some & ~first)
    moved = inputs.bias.double() + far * lowered.double()
    return inputs.replace(bias=moved.to(inputs.bias.dtype), generic=False), rows


def _unbiased(inputs: Inputs) -> Inputs:
    return inputs.replace(bias=None if inputs.bias is None else torch.zeros_like(inputs.bias))


def _in_range(subject: Subject, inputs: Inputs) -> Tensor:
    """Rows that a candidate can compute; a bias is no product, so its size does not count."""
    plain = subject.golden(_unbiased(inputs))
    expected = subject.golden(inputs)
    return plain.judged & representable_output(expected.output, expected.limit).unsqueeze(-1)


def _without(inputs: Inputs, rows: Tensor) -> Tensor:
    return ~rows if inputs.keep is None else inputs.keep & ~rows


@clause(
    "mask.bias-lowest",
    level="SHOULD",
    sentence=(
        "A row whose biases are all the lowest finite number returns a mean of its values, and "
        "no NaN."
    ),
    source="pytorch#109517: NaN for rows of -3.4028e+38; HF transformers masks with finfo.min",
    space=FAR_BIASES.replace(kinds=("core",), values=("normal",)),
    counterfactual="an answer of zeros",
    applies=(attends_keys_alone,),
    explained=False,
)
def bias_lowest(subject: Subject, problem: Problem) -> Finding:
    """Sums with such a bias lose the scores: any mean of the values passes."""
    drawn = subject.inputs(problem)
    if drawn.bias is None or drawn.keep is None:
        return Finding(binding=False)
    lowest = torch.finfo(drawn.bias.dtype).min
    name = "key" if drawn.mode == "memory" else "value"
    above_zero = {name: getattr(drawn, name).abs() + 1.0}  # so that zeros lie outside
    inputs = drawn.with_tokens(**above_zero).replace(bias=torch.full_like(drawn.bias, lowest))
    value = inputs.exact[2]
    rows = _in_range(subject, inputs)
    allowed = inputs.allowed(subject.declaration.semantics).unsqueeze(-1)
    attended = value.double()[:, read_heads(subject, inputs)].unsqueeze(2)
    low = torch.where(allowed, attended, math.inf).amin(dim=3)
    high = torch.where(allowed, attended, -math.inf).amax(dim=3)
    # A mean may err by as much as the golden answer with equal weights.
    slack = subject.golden(_unbiased(inputs).replace(scale=0.0)).bound
    answer = subject.answer(inputs).double()
    outside = rows & ~((answer >= low - slack) & (answer <= high + slack))
    if not bool(outside.any()):
        return Finding(binding=bool((rows & (low > slack)).any()))
    place = first_place(outside)
    got, least, most = (float(tensor[place]) for tensor in (answer, low, high))
    message = (
        f"where every bias of a row is {lowest:.4g}, the answer at {list(place)} is {got:.9g}, "
        f"no mean of its values in [{least:.9g}, {most:.9g}]"
    )
    return violated("value", message, expected=[least, most], got=got, where=list(place))
