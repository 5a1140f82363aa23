"""bias.alibi: linear biases by distance, for any number of heads."""

from __future__ import annotations

import torch
from torch import Tensor

from .._golden import golden
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.settling import settle
from ..problems.space import Space
from ._measuring import measures_golden
from .registry import Finding, clause
from .subject import Subject

# Powers of two, whose slopes are a geometric sequence, and others, whose are not.
HEADS = (3, 4, 6, 2, 5, 8, 12, 7, 1)
DISTANCES = Space(
    mask="maybe",
    causal="maybe",
    finite_bias="maybe",
    extras="maybe",
    values=LIVELY,
    least=(("key_length", 2),),
    preferred=(("key_length", 4),),
    share=0.5,
)


def _has_alibi(candidate: Candidate) -> str:
    known = candidate.declaration.semantics.alibi
    return "" if known else "its semantics declares no linear biases"


@clause(
    "bias.alibi",
    level="MUST",
    sentence=(
        "Each position of distance takes the slope of its head off the logit: 2^(-8h/n) for n "
        "heads if n is a power of two, else those of the next lower power and every other one of "
        "the next higher."
    ),
    source="Press et al. 2022 (ALiBi), section 3, and the authors' code for other numbers of heads",
    space=DISTANCES,
    needs_golden=True,
    counterfactual="no biases, or slopes of one geometric sequence whatever the number of heads",
    applies=(_has_alibi,),
    subtle=True,
)
def alibi(subject: Subject, problem: Problem) -> Finding:
    """Numbers of heads from 1 to 12, as far as they are free, against the golden."""
    inputs = subject.inputs(_with_heads(subject, problem))
    wording = "linear biases are not what is declared"
    finding = measures_golden(subject, inputs, wording)
    known = subject.yardstick(inputs)
    far = ~((_otherwise(subject, inputs) - known.output).abs() <= known.bound)
    shows = bool((far & known.judged).any())
    return Finding(
        binding=finding.binding and shows, margin=finding.margin, violation=finding.violation
    )


def _with_heads(subject: Subject, problem: Problem) -> Problem:
    """The same with another number of heads, by its seed, each with keys of its own."""
    count = HEADS[problem.seed % len(HEADS)]
    wanted = problem.geometry.replace(num_heads=count, num_kv_heads=count)
    return problem.replace(geometry=settle(wanted, subject.candidate, DISTANCES))


def _otherwise(subject: Subject, inputs: Inputs) -> Tensor:
    """The answer with the slopes of a power of two, or without any where they are right."""
    plain = subject.declaration.semantics.replace(alibi=False)
    heads = inputs.geometry.num_heads
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    if inputs.bias is not None or torch.equal(slopes, golden.alibi_slopes(heads)):
        return subject.oracle.output(inputs, plain)
    sizes = inputs.geometry
    places = golden.query_positions(sizes.query_length, sizes.key_length, plain)
    right = golden.alibi_bias(heads, places, sizes.key_length)
    factors = (slopes / golden.alibi_slopes(heads))[:, None, None]
    return subject.oracle.output(inputs.replace(bias=right * factors), plain)
