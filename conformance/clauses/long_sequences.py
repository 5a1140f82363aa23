"""numerics.any-length, .long-sequence: edges of large tiles, and thousands of keys."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ..declare.candidate import Candidate
from ..oracle.comparison import compare, moves
from ..oracle.long_sequences import rows_apart
from ..oracle.oracle import Golden, Oracle
from ..problems.inputs import Inputs, of_rows
from ..problems.materialise import generator_for, materialise
from ..problems.problem import Problem
from ..problems.space import Space, admits_lengths, can_cross
from .registry import Finding, clause
from .subject import Subject

# Rows on both sides of the edges of tiles; some random rows are judged as well.
EDGE_ROWS: Final = (0, 1, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512)
RANDOM_ROWS: Final = 4


@clause(
    "numerics.any-length",
    sentence="The answer is right for sequences of any length: before, at and past tile edges.",
    source="pytorch#162588, #109517, #127055: wrong, or NaN, at long lengths only",
    space=Space(
        mask="maybe",
        causal="maybe",
        finite_bias="maybe",
        values=("normal", "negative-logits", "dominant-key"),
        patterns=("random", "padding", "sparse", "left-padding", "mixed"),
        preferred=(("key_length", 24), ("query_length", 24)),
        share=0.1,
        edges="lengths",
    ),
    needs_golden=True,
    counterfactual="the last key left out",
    subtle=True,
)
def any_length(subject: Subject, problem: Problem) -> Finding:
    """Long sequences with few and small heads; some rows of the answer are judged."""
    inputs = subject.inputs(problem)
    wording = f"among {inputs.geometry.key_length} keys the answer is wrong"
    shorter = inputs.allowed(subject.declaration.semantics).clone()
    shorter[..., -1] = False
    lost = inputs.attending(shorter, subject.declaration.semantics)
    return some_rows_match(subject, problem, inputs, wording, counterfactual=lost)


def some_rows_match(
    subject: Subject, problem: Problem, inputs: Inputs, wording: str, *, counterfactual: Inputs
) -> Finding:
    """Compare some rows of the answer with the golden; all rows where rows depend on each other.

    The example binds only if these rows can tell the ``counterfactual`` from the golden answer.
    """
    apart = rows_apart(subject.declaration.semantics)
    rows = _some_rows(problem) if apart else torch.arange(problem.geometry.query_length)
    row_inputs, changed = (
        _of_rows(subject, call, rows) if apart else call for call in (inputs, counterfactual)
    )
    expected = subject.golden(row_inputs)
    agreement = compare(
        subject.answer(inputs).index_select(-2, rows),
        expected.output,
        expected.bound,
        judged=expected.judged,
        wording=wording,
    )
    if agreement.kind:
        *head, row, channel = agreement.index
        agreement = agreement.replace(index=(*head, int(rows[row]), channel))
    other = subject.oracle.output(changed)
    judged = expected.judged & torch.isfinite(other)
    binding = moves(expected.output, other, expected.bound, judged)
    return Finding.of(agreement, binding=binding)


def _some_rows(problem: Problem) -> Tensor:
    length = problem.geometry.query_length
    drawn = torch.randint(length, (RANDOM_ROWS,), generator=generator_for(problem, 15)).tolist()
    wanted = {*EDGE_ROWS, *drawn, length - 1, length - 2}
    return torch.tensor(sorted(row for row in wanted if 0 <= row < length))


def _of_rows(subject: Subject, inputs: Inputs, rows: Tensor) -> Inputs:
    point = subject.declaration.semantics
    shown = inputs.attending(inputs.allowed(point, rows), point)
    return shown.replace(
        geometry=inputs.geometry.replace(query_length=len(rows)),
        mode="separate",
        query=inputs.query.index_select(-2, rows),
        bias=of_rows(shown.bias, rows),
        mask_form="keep",
        mask_shape="BHQK",
        generic=False,
    )


# What a drawn number of keys is multiplied by: 40 become 2,560 in the quick profile, 513 become
# 32,832 in the thorough one.
TIMES: Final = 64
# Queries of a problem with that many keys.
FEW_QUERIES: Final = 4


def _few_queries(candidate: Candidate) -> str:
    """Why no call can have few queries and many keys, or ""."""
    if can_cross(candidate):
        return ""
    return "it takes as many queries as keys, and numerics.any-length judges as many as can be"


@clause(
    "numerics.long-sequence",
    sentence="The answer is right among thousands of keys, those at the far end included.",
    source="pytorch#109517, #127055, onnxruntime#20921: offsets and counters that overflow",
    space=Space(
        causal="maybe",
        values=("normal", "mixed-scales", "nearly-uniform"),
        least=(("key_length", 33),),
        share=0.03,
    ),
    needs_golden=True,
    counterfactual="the last eighth of the keys left out",
    applies=(_few_queries,),
    subtle=True,
)
def long_sequence(subject: Subject, problem: Problem) -> Finding:
    """Few queries and many keys; benchmarks/long_sequences.py judges as many queries."""
    longer = _lengthened(subject, problem)
    if longer is None:
        return Finding(binding=False)
    inputs = materialise(longer, subject.candidate).replace(device=subject.device)
    oracle = Oracle(
        subject.declaration, subject.dtype
    )  # the subject's oracle would remember its answers
    expected = oracle.answer(inputs)
    wording = f"with {TIMES} times as many keys, {longer.geometry.key_length}, the answer is wrong"
    agreement = compare(
        subject.answer(inputs),
        expected.output,
        expected.bound,
        judged=expected.judged,
        wording=wording,
    )
    binding = agreement.kind != "" or _shows_the_end(oracle, inputs, expected)
    return Finding.of(agreement, binding=binding)


def _lengthened(subject: Subject, problem: Problem) -> Problem | None:
    """The problem with many keys; None where the candidate does not take the lengths."""
    geometry = problem.geometry
    longer = geometry.replace(
        batch=1,
        key_length=geometry.key_length * TIMES,
        query_length=min(geometry.query_length, FEW_QUERIES),
    )
    apart = rows_apart(subject.declaration.semantics)
    fits = apart and admits_lengths(subject.candidate, longer)
    return problem.replace(geometry=longer) if fits else None


def _shows_the_end(oracle: Oracle, inputs: Inputs, expected: Golden) -> bool:
    """Whether the answer without the last eighth of the keys is another."""
    point = oracle.declaration.semantics
    shorter = inputs.allowed(point).clone()
    shorter[..., -(shorter.shape[-1] // 8) :] = False
    other = oracle.output(inputs.attending(shorter, point))
    return moves(expected.output, other, expected.bound, expected.judged & other.isfinite())
