"""sinks.*: each head's softmax sum has one more logit, whose value is zero."""

from __future__ import annotations

import torch

from ..declare.candidate import Candidate
from ..oracle.comparison import compare
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, Space
from .empty_rows import EMPTY, has_no_empty_rows
from .judging import matches_golden, measures_golden, narrow_range
from .registry import Finding, clause, declares, requires
from .subject import Subject

SOURCE = "OpenAI 2025 (gpt-oss model card), section 2.3; Xiao et al. 2024 (StreamingLLM)"
# Beyond what an exponential can hold in float32, and beyond what a float16 can.
LARGE = (100.0, 1e4, 3e3)
LARGE_IN_HALF = (100.0, 1e3, 30.0)


offers_sinks = declares("sinks", "no sinks are declared")


def with_sinks(subject: Subject, problem: Problem) -> Inputs:
    """The inputs of a problem, with sinks."""
    return subject.inputs(problem.replace(sinks=True))


@clause(
    "sinks.golden",
    sentence=(
        "The sink of a head joins the sum of its softmax, in every row, as a key whose value is "
        "zero and which nothing hides."
    ),
    source=SOURCE,
    space=EVERY_OPTION.replace(values=LIVELY, share=0.5),
    needs_golden=True,
    counterfactual="no sinks, or the sink of another head",
    applies=(offers_sinks,),
    subtle=True,
)
def sinks(subject: Subject, problem: Problem) -> Finding:
    """Sinks of the size of the logits, with all other options, against the golden."""
    inputs = with_sinks(subject, problem)
    others = None if inputs.sinks is None else inputs.sinks.roll(1)
    if problem.seed % 2 == 0 or inputs.geometry.num_heads == 1:
        others = None
    wording = "with sinks an answer is wrong"
    return measures_golden(subject, inputs, wording, counterfactual=inputs.replace(sinks=others))


@clause(
    "sinks.large",
    sentence="A sink of any size neither overflows nor loses the other weights.",
    source="the maximum that is subtracted must count the sink: vllm, flash-attention",
    space=Space(mask="maybe", causal="maybe", values=LIVELY, share=0.5),
    needs_golden=True,
    counterfactual="sinks of the other sign",
    applies=(offers_sinks,),
    subtle=True,
)
def large_sinks(subject: Subject, problem: Problem) -> Finding:
    """Far above all logits, where nothing is left for the keys, or far below, where all is."""
    inputs = with_sinks(subject, problem)
    sizes = LARGE_IN_HALF if narrow_range(subject) else LARGE
    signs = 1.0 - 2.0 * ((torch.arange(inputs.geometry.num_heads) + problem.seed) % 2)
    large = signs * sizes[problem.seed % len(sizes)]
    inputs = inputs.replace(sinks=large.to(inputs.query.dtype), generic=False)
    return matches_golden(
        subject,
        inputs,
        "with large sinks an answer is wrong",
        counterfactual=inputs.replace(sinks=-large.to(inputs.query.dtype)),
        signal=False,  # below a large sink zeros are right
    )


@clause(
    "sinks.null-key",
    sentence=(
        "A key of zeros, whose value is zero, joins the softmax of every row: a one joins the sum "
        "of its exponentials, whatever the logits."
    ),
    source="torch, MultiheadAttention: add_zero_attn; Miller 2023 (Attention is off by one)",
    space=EVERY_OPTION.replace(values=LIVELY),
    needs_golden=True,
    counterfactual="weights that sum to one",
    applies=(
        requires(lambda c: c.declaration.semantics.null_key, "its semantics has no null key"),
    ),
    subtle=True,
)
def null_key(subject: Subject, problem: Problem) -> Finding:
    """Logits of either sign, with all other options, against the golden."""
    plain = subject.declaration.semantics.replace(null_key=False)
    wording = "beside a null key an answer is wrong"
    return measures_golden(subject, subject.inputs(problem), wording, counterfactual=plain)


def _promises_zeros(candidate: Candidate) -> str:
    rule = candidate.declaration.empty_rows
    if rule == "zeros":
        return has_no_empty_rows(candidate)
    if rule == "any":
        return "it promises nothing about rows without keys"
    return f"it promises {rule} for rows without keys, which may or may not hold with a sink"


@clause(
    "sinks.empty-row",
    sentence="A query without any key gives all its weight to the sink and returns zeros.",
    source="by definition: the softmax of a sink alone is one, and its value is zero",
    space=EMPTY.replace(share=0.5),
    needs_golden=True,
    counterfactual="a query without any key",
    applies=(offers_sinks, _promises_zeros),
    subtle=True,
)
def empty_row(subject: Subject, problem: Problem) -> Finding:
    """Only the rows without keys are judged; their maximum is the sink itself."""
    inputs = with_sinks(subject, problem)
    expected = subject.golden(inputs)
    rows = expected.empty_rows & expected.representable
    wording = "a query without any key does not return zeros where there is a sink"
    agreement = compare(
        subject.answer(inputs), expected.output, expected.bound, judged=rows, wording=wording
    )
    return Finding.of(agreement, binding=bool(rows.any()))
