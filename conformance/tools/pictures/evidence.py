"""What made an example of a clause bind: what was seen, what would have been, what would move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..._golden import golden
from ...clauses.registry import Clause, all_clauses
from ...clauses.subject import Subject
from ...declare.candidate import Candidate
from ...oracle.comparison import ToldApart, telling_apart
from ...oracle.oracle import Golden, Oracle, evaluate
from ...problems.edges import edge_problems
from ...problems.inputs import Inputs
from ...problems.problem import Problem
from ...shrinking.smallest import examine
from ..teeth.acted import correct_candidates

LARGEST: Final = 9  # queries and keys that a picture can show
_DTYPE: Final = "float32"


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """One binding example of a clause, held against its counterfactual.

    seen, instead
        Which keys each query may attend, as required and in the counterfactual, bool
        ``[B, H, Lq, Lk]``; ``instead`` is None where the counterfactual has other sizes, or is no
        answer of the golden.
    moved, judged
        Which elements of the answer the counterfactual moves by more than the bound, and which
        anybody looks at; bool ``[B, H, rows, channels]``.
    """

    clause: Clause
    problem: Problem
    seen: Tensor
    instead: Tensor | None
    moved: Tensor
    judged: Tensor


class _Watched(Oracle):
    """An oracle that keeps what it was asked, and how many counterfactuals were compared before."""

    def __init__(self, subject: Subject, compared: list[ToldApart]) -> None:
        super().__init__(subject.declaration, subject.dtype)
        self.compared = compared
        self.asked: list[tuple[int, Inputs]] = []
        self.others: list[tuple[int, Inputs, golden.Semantics]] = []

    def answer(self, inputs: Inputs) -> Golden:
        """The golden answer; noted."""
        self.asked.append((len(self.compared), inputs))
        return super().answer(inputs)

    def output(self, inputs: Inputs, semantics: golden.Semantics | None = None) -> Tensor:
        """The golden output; noted with the point it is asked at."""
        point = semantics or self.declaration.semantics
        self.others.append((len(self.compared), inputs, point))
        return super().output(inputs, semantics)


def evidence(slug: str) -> Evidence:
    """The first small edge problem of a clause that binds because a part of the answer moves.

    Where all of it moves in every problem, the first of them. Raises LookupError where no small
    problem binds, or no core is asked.
    """
    clause = next(known for known in all_clauses() if known.id == slug)
    whole: Evidence | None = None
    for found in _binding(clause):
        if bool((found.judged & ~found.moved).any()):
            return found
        whole = whole or found
    if whole is None:
        msg = f"no small problem of {slug} binds for a core, so it has no picture"
        raise LookupError(msg)
    return whole


def _binding(clause: Clause) -> Iterator[Evidence]:
    for candidate in correct_candidates():
        if candidate.kind != "core" or clause.not_applicable(candidate):
            continue
        for problem in edge_problems(candidate, clause.space, dtype=_DTYPE):
            sizes = problem.geometry
            if max(sizes.query_length, sizes.key_length) <= LARGEST:
                found = _tried(clause, candidate, problem)
                if found is not None:
                    yield found


def _tried(clause: Clause, candidate: Candidate, problem: Problem) -> Evidence | None:
    """What one example shows, None where it does not bind or compares nothing."""
    subject = Subject(candidate, _DTYPE)
    with telling_apart() as compared:
        oracle = _Watched(subject, compared)
        subject.oracle = oracle
        finding = examine(clause, subject, problem)
    shown = next((n for n, each in enumerate(compared) if bool(each.moved.any())), None)
    asked = [inputs for before, inputs in oracle.asked if shown is not None and before <= shown]
    others = [(inputs, point) for before, inputs, point in oracle.others if before == shown]
    if not finding.binding or shown is None or not asked:
        return None
    seen = _seen(asked[-1], candidate.declaration.semantics)
    instead = _seen(*others[-1]) if others else None
    return Evidence(
        clause=clause,
        problem=problem,
        seen=seen,
        instead=instead if instead is not None and instead.shape == seen.shape else None,
        moved=compared[shown].moved,
        judged=compared[shown].judged,
    )


def _seen(inputs: Inputs, point: golden.Semantics) -> Tensor:
    """Which keys each query attends, ``[B, H, Lq, Lk]``."""
    evaluated = evaluate(inputs, point)
    core = evaluated if isinstance(evaluated, golden.Attention) else evaluated.core
    return core.allowed.to(torch.bool)
