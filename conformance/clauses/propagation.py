"""numerics.nan-shows: what is not a number is not answered with one."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from ..base.results import Violation
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.space import Space
from ._vocabulary import knows_nan
from .registry import Finding, clause
from .subject import Subject

WHERE: Final = ("query", "key", "value")


@clause(
    "numerics.nan-shows",
    level="SHOULD",
    sentence=(
        "What is not a number shows: a NaN in a query, or in a key or value that the query "
        "attends, is answered with NaN, under masks too."
    ),
    source="pytorch#141128: a NaN query answered with zeros; IEEE 754-2019, section 6.2",
    space=Space(mask="maybe", causal="maybe", values=("normal",), share=0.25),
    applies=(knows_nan,),
    explained=False,
)
def nan_shows(subject: Subject, problem: Problem) -> Finding:
    """One token of a query, a key or a value is NaN; every row that meets it is looked at."""
    inputs = subject.inputs(problem)
    role = WHERE[problem.seed % len(WHERE)]
    known = subject.candidate.golden_known
    allowed = inputs.allowed(subject.declaration.semantics)
    allowed = subject.golden(inputs).core.allowed if known else allowed
    length = inputs.geometry.query_length if role == "query" else inputs.geometry.key_length
    chosen = int(torch.randint(max(length, 1), (1,), generator=generator_for(problem, 42)))
    meeting = _meeting(inputs, allowed, role, chosen)
    if not bool(meeting.any()):
        return Finding(binding=False)
    answer = subject.answer(_poisoned(inputs, role, chosen))
    hidden = ~answer.isnan() & meeting
    if not bool(hidden.any()):
        return Finding()
    index = [int(i) for i in hidden.nonzero()[0]]
    got = float(answer[tuple(index)])
    message = f"a {role} that is NaN is answered with {got:.9g} at {index}"
    return Finding(
        violation=Violation(kind="value", message=message, expected="nan", got=got, where=index)
    )


def _meeting(inputs: Inputs, allowed: Tensor, role: str, chosen: int) -> Tensor:
    """The rows of the answer that a NaN in one token must show in, broadcastable to it.

    A query's own row, if it has a key; the rows that attend a key or value. Where both are one
    token, or rows of several heads make one, any of them will do.
    """
    attends = allowed[..., chosen] if role != "query" else torch.zeros_like(allowed[..., 0])
    if role == "query" or inputs.mode == "self":
        own = torch.arange(inputs.geometry.query_length) == chosen
        attends = attends | (own & allowed.any(dim=-1))
    return (attends.any(dim=1) if inputs.is_layer else attends).unsqueeze(-1)


def _poisoned(inputs: Inputs, role: str, chosen: int) -> Inputs:
    """The same with one token of nothing but NaN, in every role that it plays."""
    token = "key" if inputs.mode == "self" or (inputs.mode, role) == ("memory", "value") else role
    poisoned: Tensor = getattr(inputs, token).clone()
    poisoned[..., chosen, :] = math.nan
    return inputs.with_tokens(**{token: poisoned})
