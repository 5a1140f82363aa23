"""lse.*: the logarithms of the softmax's denominators, which merge answers about parts of the keys.

Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; flash-attention returns
them as softmax_lse, FlashInfer in base 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..base.geometry import Geometry
from ..declare.candidate import Candidate
from ..declare.declaration import GIVEN_POSITIONS, SEQUENCES
from ..oracle.comparison import compare, moves
from ..problems.inputs import Inputs
from ..problems.mask_patterns import NO_KEYS
from ..problems.problem import Problem
from ..problems.space import Space, admits_lengths, can_cross
from .empty_rows import EMPTY, before_all_keys, has_no_empty_rows
from .judging import first_place, places_matter, same_answer
from .registry import Finding, clause, declares, requires, violated
from .subject import Subject

AXES: Final = ("batch", "head", "query")
SOURCE: Final = "Dao et al. 2022 (FlashAttention), algorithm 1; Dao-AILab/flash-attention#404"
offers_lse = declares("lse", "it does not return log-sum-exps")


def _asking(subject: Subject, inputs: Inputs) -> Inputs:
    return inputs.replace(return_lse=subject.declaration.lse_shape or "")


def _answers(subject: Subject, inputs: Inputs) -> tuple[Tensor, Tensor]:
    answer = subject.call(subject.forward(inputs), inputs)
    if answer.lse is None:
        msg = "log-sum-exps were requested, so the answer that was read holds them"
        raise LookupError(msg)
    return answer.output, answer.lse


@clause(
    "lse.golden",
    sentence=(
        "The returned log-sum-exp of a query is the logarithm of its softmax's denominator, sinks "
        "included, in the declared base and axes and in float32 at least."
    ),
    source=SOURCE,
    space=Space(mask="maybe", causal="maybe", finite_bias="maybe", extras="maybe"),
    needs_golden=True,
    counterfactual="the logarithm of the number of keys",
    applies=(offers_lse,),
)
def golden_log_sum_exps(subject: Subject, problem: Problem) -> Finding:
    """Rows without keys are left out."""
    inputs = _asking(subject, subject.inputs(problem))
    _, got = _answers(subject, inputs)
    golden = subject.golden(inputs)
    expected, bound = subject.oracle.log_sum_exp(inputs)
    judged = ~golden.empty & golden.representable_core
    wording = "the returned log-sum-exp is wrong"
    agreement = compare(got, expected, bound, judged=judged, wording=wording, axes=AXES)
    count = golden.core.allowed.sum(dim=-1).double().log()
    return Finding.of(agreement, binding=moves(expected, count, bound, judged))


@clause(
    "lse.aside",
    sentence="Asking for the log-sum-exp does not change the output.",
    source="by definition: merged answers are those of calls that ask for it",
    space=Space(mask="maybe", causal="maybe", extras="maybe", share=0.5),
    applies=(offers_lse,),
    explained=False,
)
def log_sum_exp_aside(subject: Subject, problem: Problem) -> Finding:
    """One call with return_lse=True and one without."""
    inputs = subject.inputs(problem)
    asking = _asking(subject, inputs)
    wording = "asking for the log-sum-exp changes the output"
    return same_answer(subject, inputs, asking, wording)


_promises_empty = requires(
    lambda candidate: candidate.declaration.lse_empty != "any",
    "it promises nothing about the log-sum-exp of a query without keys",
)


def _without_keys(problem: Problem) -> Problem:
    """The problem, of whose sequences some have no keys: no table empties a row there."""
    if problem.mask is None or problem.mask.form != SEQUENCES:
        return problem
    return problem.replace(mask=problem.mask.replace(pattern=NO_KEYS))


@clause(
    "lse.empty-row",
    sentence=(
        "The log-sum-exp of a query without any key is what is declared, minus infinity by "
        "default; with a sink it is the sink's logit."
    ),
    source="the logarithm of an empty sum; Dao-AILab/flash-attention returns infinity there",
    space=EMPTY,
    counterfactual="a finite number",
    applies=(offers_lse, _promises_empty, has_no_empty_rows),
    explained=False,
)
def empty_row_log_sum_exp(subject: Subject, problem: Problem) -> Finding:
    """A partial answer without keys gets no weight where answers are merged."""
    inputs = subject.inputs(_without_keys(problem))
    inputs = before_all_keys(subject, _asking(subject, inputs))
    got = _answers(subject, inputs)[1].double()
    golden = subject.golden(inputs)
    expected, bound = subject.oracle.log_sum_exp(inputs)
    wording = "the log-sum-exp of a query without keys is not what is declared"
    finite = torch.isfinite(expected)
    empty = golden.empty if inputs.absent is None else golden.empty & ~inputs.absent
    judged = empty & finite & golden.representable_core
    agreement = compare(got, expected, bound, judged=judged, wording=wording, axes=AXES)
    if agreement.kind:
        return Finding.of(agreement)
    rows = empty & ~finite
    promised = math.inf if subject.declaration.lse_empty == "inf" else -math.inf
    wrong = rows & ~(got == promised)
    if bool(wrong.any()):
        place = first_place(wrong)
        value = float(got[place])
        message = f"{wording} at {list(place)}: expected {promised}, got {value:.9g}"
        where = list(place)
        return violated("value", message, expected=str(promised), got=str(value), where=where)
    return Finding(binding=bool(empty.any()))


_LEAST: Final = 2


def _splits(candidate: Candidate) -> str:
    """Why a call with some of the keys cannot be made, or ""."""
    declared = candidate.declaration
    if not can_cross(candidate):
        return "it has a query for each key"
    placed = declared.always_causal or declared.position is not None
    if placed or GIVEN_POSITIONS in declared.features:
        return "its keys have places, which a part of them would change"
    if declared.semantics.null_key:
        return "each part of the keys would have a null key of its own"
    return places_matter(candidate)


@clause(
    "lse.merge",
    sentence=(
        "The outputs for two halves of the keys, weighted by the exponentials of their "
        "log-sum-exps, are the output for all keys."
    ),
    source="Juravsky et al. 2024 (Hydragen), section 3.1; vLLM's merge_attn_states",
    space=Space(least=(("key_length", _LEAST),)),
    needs_golden=True,
    counterfactual="the mean of the two outputs",
    applies=(offers_lse, _splits),
)
def merged_halves(subject: Subject, problem: Problem) -> Finding:
    """The bound adds those of the halves by their shares, and that of the shares."""
    inputs = _asking(subject, subject.inputs(problem))
    length = inputs.geometry.key_length
    middle = length // 2
    sizes = [inputs.geometry.replace(key_length=size) for size in (middle, length - middle)]
    if middle < 1 or not all(admits_lengths(subject.candidate, size) for size in sizes):
        return Finding(binding=False)
    one, other = (
        _Half.of(subject, inputs, part, size)
        for part, size in zip((slice(middle), slice(middle, None)), sizes, strict=True)
    )
    given = torch.stack([one.lse, other.lse]).softmax(dim=0).unsqueeze(-1)
    exact = torch.stack([one.exact_lse, other.exact_lse]).softmax(dim=0).unsqueeze(-1)
    shifted = torch.expm1(one.lse_bound + other.lse_bound).unsqueeze(-1)
    apart = (one.exact - other.exact).abs() + one.bound + other.bound
    bound = exact[0] * one.bound + exact[1] * other.bound + shifted * apart
    expected = exact[0] * one.exact + exact[1] * other.exact
    agreement = compare(
        given[0] * one.output + given[1] * other.output,
        expected,
        bound,
        judged=subject.golden(inputs).judged,
        wording="two halves of the keys, merged by their log-sum-exps, are not the whole",
    )
    mean = (one.exact + other.exact) / 2.0
    return Finding.of(agreement, binding=moves(expected, mean, bound))


@dataclass(frozen=True, kw_only=True)
class _Half:
    """The answer for some of the keys beside the golden one, with natural logarithms."""

    output: Tensor
    lse: Tensor
    exact: Tensor
    bound: Tensor
    exact_lse: Tensor
    lse_bound: Tensor

    @classmethod
    def of(cls, subject: Subject, inputs: Inputs, part: slice, size: Geometry) -> _Half:
        half = inputs.replace(
            key=inputs.key[:, :, part],
            value=inputs.value[:, :, part],
            geometry=size,
            generic=False,
        )
        output, lse = _answers(subject, half)
        golden, (exact_lse, lse_bound) = subject.golden(half), subject.oracle.log_sum_exp(half)
        natural = math.log(2.0) if subject.declaration.lse_base == "2" else 1.0
        return cls(
            output=output.double(),
            lse=lse.double() * natural,
            exact=golden.output,
            bound=golden.bound,
            exact_lse=exact_lse * natural,
            lse_bound=lse_bound * natural,
        )
