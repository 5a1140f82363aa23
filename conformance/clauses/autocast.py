"""mixed.autocast: float32 inputs under torch.autocast."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import torch

from ..base.results import Violation
from ..calls.calling import arguments
from ..declare.candidate import Candidate
from ..oracle.comparison import compare, moves
from ..oracle.oracle import Oracle
from ..problems.problem import Problem
from ..problems.space import Space
from ._vocabulary import golden_at
from .mixed import name_of
from .registry import Finding, clause
from .subject import Subject

AUTOCAST: Final = (torch.bfloat16, torch.float16)


def _declares_autocast(candidate: Candidate) -> str:
    if "autocast" not in candidate.declaration.features:
        return "no autocast is declared"
    if "float32" not in candidate.declaration.dtypes:
        return "it does not take float32, which autocast speaks of"
    return ""


@clause(
    "mixed.autocast",
    level="MUST",
    sentence=(
        "Under torch.autocast, float32 inputs give an answer in the dtype of autocast or in "
        "float32, as exact as the dtype of autocast allows."
    ),
    source="torch.autocast; pytorch#99012: masks that stay float32 under it",
    space=Space(
        values=("normal", "integers", "decisive"),
        mask="maybe",
        causal="maybe",
        least=(("key_length", 2),),
        share=0.5,
    ),
    needs_golden=True,
    counterfactual="equal weights",
    applies=(_declares_autocast,),
    explained=False,
)
def autocast(subject: Subject, problem: Problem) -> Finding:
    """bfloat16 and float16 in turn."""
    if subject.dtype != "float32":
        return Finding(binding=False, inapplicable="autocast speaks of float32 inputs")
    inputs = subject.inputs(problem)
    working = AUTOCAST[problem.seed % len(AUTOCAST)]
    forward = subject.forward(inputs)

    def within(*positional: Any, **keywords: Any) -> Any:
        with torch.autocast(torch.device(subject.device).type, dtype=working):
            return forward(*positional, **keywords)

    answer = subject.ask(within, arguments(inputs), inputs).output
    if answer.dtype not in (working, torch.float32):
        message = f"under autocast to {name_of(working)} the answer is in {name_of(answer.dtype)}"
        got = name_of(answer.dtype)
        return Finding(violation=Violation(kind="dtype", message=message, got=got))
    oracle = _oracle(subject, working)
    known = oracle.answer(inputs)
    # Every tensor may be rounded on its way into a product.
    contract = oracle.contract(known.core.scale)
    contract = dataclasses.replace(contract, operand_roundoff=contract.unit_roundoff)
    bound = oracle.bound(inputs, contract)
    agreement = compare(
        answer,
        known.output,
        bound,
        judged=known.judged,
        wording=f"under autocast to {name_of(working)} the answer is wrong",
    )
    even = golden_at(subject, inputs, inputs.replace(scale=0.0))
    return Finding(
        binding=moves(known.output, even, bound, known.judged),
        margin=agreement.margin,
        violation=agreement.violation,
    )


def _oracle(subject: Subject, working: torch.dtype) -> Oracle:
    """The golden at the precision of autocast: every operation stores what it computes."""
    declared = dataclasses.replace(subject.declaration, accumulate=None, scores="eager", tf32=False)
    return Oracle(declared, name_of(working))
