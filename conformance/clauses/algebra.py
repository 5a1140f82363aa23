"""numerics.key-shift, .constant-value, .value-linear, .convex: laws that need no golden answer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.results import Violation
from ..declare.candidate import Candidate
from ..oracle.comparison import add_relation, compare
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, admits_lengths, can_cross, is_fixed
from ..tolerance.attention_bound import is_normalised
from .judging import first_place, same_answer
from .rearranging import read_heads
from .registry import Finding, clause, requires
from .subject import Subject

SEVERAL_KEYS = Space(values=LIVELY, least=(("key_length", 2),), share=0.5)


def _sums_to_one(candidate: Candidate) -> str:
    declared = candidate.declaration.semantics
    if candidate.has_memory:
        return "every query attends bias_k, too, which no call changes"
    if is_normalised(declared) and not declared.null_key:
        return ""
    return "at its declared semantics the weights of a query do not sum to one"


_sums_are_keys = requires(
    lambda candidate: candidate.declaration.kv_format is None,
    "its keys and values are codes, and sums of codes are none",
)


def _own_values(candidate: Candidate) -> str:
    declared = candidate.declaration
    if declared.inputs != "separate":
        return "keys and values are the same tokens"
    if declared.position is None or declared.positions_known:
        return ""
    return f"it mixes in {declared.position} positions"


def _shift_cancels(candidate: Candidate) -> str:
    """Why a vector added to all keys may not add the same number to a row's logits, or ""."""
    point, position = candidate.declaration.semantics, candidate.declaration.position
    if position not in (None, "alibi"):
        return f"it mixes in {position} positions"
    if point.qk_norm != "none":
        return "its keys are normalised"
    return "" if point.score_mod is None else "its score_mod need not keep differences"


@clause(
    "numerics.key-shift",
    sentence="Adding one vector to all keys changes nothing.",
    source="by definition: softmax(s + c) = softmax(s), and the shift adds one c to a row's logits",
    space=SEVERAL_KEYS,
    counterfactual="the vector added to one key only",
    applies=(_own_values, _sums_are_keys, _shift_cancels, _sums_to_one),
)
def key_shift(subject: Subject, problem: Problem) -> Finding:
    """Add one random vector to all keys of an item and compare the answers."""
    inputs = subject.inputs(problem)
    generator = generator_for(problem, 10)
    shift = torch.randn((*inputs.key.shape[:-2], 1, inputs.key.shape[-1]), generator=generator)
    shifted = inputs.with_tokens(key=inputs.key + shift.to(inputs.key.dtype))
    first_only = torch.cat([shifted.key[..., :1, :], inputs.key[..., 1:, :]], dim=-2)
    wording = "adding one vector to all keys changes the answer"
    return same_answer(
        subject, inputs, shifted, wording, counterfactual=inputs.with_tokens(key=first_only)
    )


def _can_shorten(candidate: Candidate) -> str:
    if is_fixed(candidate, "key_length") or not can_cross(candidate):
        return "its key length cannot change without the query length"
    position = candidate.declaration.position
    return f"it mixes in {position} positions" if position else ""


@clause(
    "numerics.constant-value",
    sentence="When all values are equal, the answer is that value, whatever the weights.",
    source="the weights of a row sum to one: Vaswani et al. 2017, equation 1",
    space=SEVERAL_KEYS.replace(share=1.0),
    counterfactual="weights that do not sum to one",
    applies=(_can_shorten, _sums_are_keys, _sums_to_one),
)
def constant_value(subject: Subject, problem: Problem) -> Finding:
    """Equal values under many keys against the first key alone, whose weight can only be one."""
    inputs = subject.inputs(problem)
    value = inputs.value[..., :1, :].expand(inputs.value.shape).contiguous()
    if inputs.mode == "memory":
        key = inputs.key[..., :1, :].expand(inputs.key.shape).contiguous()
        constant = inputs.with_tokens(key=key)
    else:
        constant = inputs.with_tokens(value=value)
    alone = constant.with_tokens(key=constant.key[..., :1, :], value=value[..., :1, :])
    if not admits_lengths(subject.candidate, alone.geometry):
        return Finding(binding=False)
    wording = "many equal values give another answer than one of them"
    finding = same_answer(subject, alone, constant, wording)
    lively = bool((subject.answer(alone).abs() > 0).any())
    return finding.only_if(lively)


@clause(
    "numerics.value-linear",
    sentence="The answer is linear in the values (affine, with biases after them).",
    source="Vaswani et al. 2017, equation 1: the values enter by a weighted sum",
    space=Space(values=("normal", "integers"), share=0.5),
    counterfactual="an answer of zero",
    applies=(_own_values, _sums_are_keys),
)
def value_linear(subject: Subject, problem: Problem) -> Finding:
    """f(v) + f(w) = f(v + w) + f(0), with the exactness of v + w left to the golden answers."""
    inputs = subject.inputs(problem)
    other = torch.randn(inputs.value.shape, generator=generator_for(problem, 11))
    other = other.to(inputs.value.dtype)
    values = (inputs.value, other, inputs.value + other, torch.zeros_like(other))
    parts = [inputs.with_tokens(value=value) for value in values]
    returned = [subject.answer(part) for part in parts]
    answers = [answer.double() for answer in returned]
    frames = [subject.frame(part) for part in parts]
    bound = sum((frame[1] for frame in frames), torch.zeros_like(frames[0][1]))
    golden_outputs = [frame[0] for frame in frames]
    if all(output is not None for output in golden_outputs):
        f_v, f_w, f_sum, f_zero = (output for output in golden_outputs if output is not None)
        bound = bound + torch.nan_to_num((f_v + f_w - f_sum - f_zero).abs())
    judged = torch.stack(torch.broadcast_tensors(*(frame[2] for frame in frames))).all(dim=0)
    agreement = compare(
        answers[2] + answers[3],
        answers[0] + answers[1],
        bound,
        judged=judged,
        both_answers=True,
        wording="the answer for v + w and 0 is not the answer for v plus the answer for w",
    )
    binding = bool((judged & (answers[2].abs() > bound)).any())
    violation = add_relation(
        agreement.violation,
        subject.recording,
        expected=[(answer, None) for answer in returned[:2]],
        got=[(answer, None) for answer in returned[2:]],
    )
    return Finding(binding=binding, margin=agreement.margin, violation=violation)


@clause(
    "numerics.convex",
    sentence=(
        "Each channel of a core's answer lies between the smallest and largest value it weighs."
    ),
    source="weights are positive and sum to one: Vaswani et al. 2017, equation 1",
    space=Space(kinds=("core",), mask="maybe", patterns=("random", "padding", "dense"), share=0.5),
    counterfactual="a factor of ten on the answer",
    applies=(_sums_to_one,),
)
def convex(subject: Subject, problem: Problem) -> Finding:
    """The hull of the attended values, widened by the bound."""
    inputs = subject.inputs(problem)
    golden_output, bound, judged = subject.frame(inputs)
    answer = subject.answer(inputs).double()
    lowest, highest = _hull(subject, inputs)
    below, above = (lowest - bound) - answer, answer - (highest + bound)
    outside = judged & ~((below <= 0) & (above <= 0))
    violation = None
    if bool(outside.any()):
        place = first_place(outside)
        low, high, got = (float(t[place]) for t in (lowest, highest, answer))
        message = (
            f"the answer at {list(place)} is {got:.9g}, outside the values it weighs: "
            f"[{low:.9g}, {high:.9g}]"
        )
        violation = Violation(
            kind="value", message=message, expected=[low, high], got=got, where=list(place)
        )
    tenfold = answer * 10.0 if golden_output is None else golden_output * 10.0
    leaves = judged & ((tenfold < lowest - bound) | (tenfold > highest + bound))
    return Finding(binding=bool(leaves.any()), violation=violation)


def _hull(subject: Subject, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Smallest and largest attended value of each row and channel: ``[B, H, Lq, Dv]`` each."""
    allowed = inputs.allowed(subject.declaration.semantics).unsqueeze(-1)
    value = inputs.value.double()[:, read_heads(subject, inputs)].unsqueeze(2)
    infinity = float("inf")
    lowest = torch.where(allowed, value, infinity).amin(dim=3)
    highest = torch.where(allowed, value, -infinity).amax(dim=3)
    return lowest, highest
