"""numerics.nan-shows: what is not a number is not answered with one."""

from __future__ import annotations

import math

from torch import Tensor

from ..inputs import Inputs
from ..problem import Problem
from ..registry import Finding, clause
from ..results import Violation
from ..space import Space
from ..subject import Subject
from ._vocabulary import knows_nan


@clause(
    "numerics.nan-shows",
    level="SHOULD",
    sentence="A query that is NaN is answered with NaN, not with a number.",
    source="pytorch#141128: a NaN query answered with zeros; IEEE 754-2019, section 6.2",
    space=Space(values=("normal",), share=0.25),
    applies=(knows_nan,),
    explained=False,
)
def nan_shows(subject: Subject, problem: Problem) -> Finding:
    """One token of each item is NaN; every channel of its own row is looked at."""
    inputs = subject.inputs(problem)
    attending = inputs.allowed(subject.declaration.semantics).any(dim=-1).all(dim=(0, 1)).nonzero()
    if len(attending) == 0:
        return Finding(binding=False)
    row = int(attending[problem.seed % len(attending)])
    answer = subject.answer(_poisoned(inputs, row)).select(-2, row)
    hidden = ~answer.isnan()
    if not bool(hidden.any()):
        return Finding()
    index = [int(i) for i in hidden.nonzero()[0]]
    got = float(answer[tuple(index)])
    where = [*index[:-1], row, index[-1]]
    message = f"a query that is NaN is answered with {got:.9g} at {where}"
    return Finding(
        violation=Violation(kind="value", message=message, expected="nan", got=got, where=where)
    )


def _poisoned(inputs: Inputs, row: int) -> Inputs:
    """The same with one query of nothing but NaN; in self-attention it is a key as well."""

    def with_nan(tokens: Tensor) -> Tensor:
        poisoned = tokens.clone()
        poisoned[..., row, :] = math.nan
        return poisoned

    if inputs.mode == "self":
        return inputs.with_tokens(key=with_nan(inputs.key))
    return inputs.with_tokens(query=with_nan(inputs.query))
