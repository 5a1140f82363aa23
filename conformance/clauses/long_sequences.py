"""numerics.long-sequence: thousands of keys, past where counters wrap and sums lose their grip."""

from __future__ import annotations

from typing import Final

from ..declare.candidate import Candidate
from ..oracle.comparison import compare, moves
from ..oracle.long_sequences import rows_apart
from ..oracle.oracle import Golden, Oracle
from ..problems.inputs import Inputs
from ..problems.materialise import materialise
from ..problems.problem import Problem
from ..problems.space import Space, admits_lengths, can_cross
from .registry import Finding, clause
from .subject import Subject

# What a drawn number of keys is multiplied by: 40 become 2,560 in the quick profile, 513 become
# 32,832 in the thorough one.
TIMES: Final = 64
# Queries beside that many keys.
FEW_QUERIES: Final = 4


def _few_queries(candidate: Candidate) -> str:
    """Why a few queries cannot stand beside many keys, or ""."""
    if can_cross(candidate):
        return ""
    return "it takes as many queries as keys, and numerics.any-length judges as many as can be"


@clause(
    "numerics.long-sequence",
    level="MUST",
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
    """Few queries beside many keys; benchmarks/long_sequences.py judges as many queries."""
    longer = _lengthened(subject, problem)
    if longer is None:
        return Finding(binding=False)
    inputs = materialise(longer, subject.candidate).replace(device=subject.device)
    oracle = Oracle(subject.declaration, subject.dtype)  # such tables are not worth remembering
    known = oracle.answer(inputs)
    agreement = compare(
        subject.answer(inputs),
        known.output,
        known.bound,
        judged=known.judged,
        wording=f"among {longer.geometry.key_length} keys the answer is wrong",
    )
    binding = agreement.kind != "" or _shows_the_end(oracle, inputs, known)
    return Finding(binding=binding, margin=agreement.margin, violation=agreement.violation)


def _lengthened(subject: Subject, problem: Problem) -> Problem | None:
    """The problem with many keys; None where the candidate takes no such lengths."""
    geometry = problem.geometry
    longer = geometry.replace(
        batch=1,
        key_length=geometry.key_length * TIMES,
        query_length=min(geometry.query_length, FEW_QUERIES),
    )
    apart = rows_apart(subject.declaration.semantics)
    fits = apart and admits_lengths(subject.candidate, longer)
    return problem.replace(geometry=longer) if fits else None


def _shows_the_end(oracle: Oracle, inputs: Inputs, known: Golden) -> bool:
    """Whether the answer without the last eighth of the keys is another."""
    shorter = inputs.allowed(oracle.declaration.semantics).clone()
    shorter[..., -(shorter.shape[-1] // 8) :] = False
    other = oracle.output(inputs.replace(keep=shorter))
    return moves(known.output, other, known.bound, known.judged & other.isfinite())
