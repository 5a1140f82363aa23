"""Pictures of what binds: a problem of a clause, and what its counterfactual would change.

Two tables are drawn: the keys that queries may see, and the elements of the answer that would move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..clauses.registry import Clause, all_clauses
from ..clauses.subject import Subject
from ..declare.candidate import Candidate
from ..oracle.comparison import CounterfactualDifference, watching_counterfactuals
from ..oracle.oracle import Golden, Oracle, evaluate
from ..problems.edges import edge_problems
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..running.shrinking.smallest import examine
from .svg import Panel, draw
from .teeth.mistaken_candidates import correct_candidates

PICTURED: Final = frozenset(
    """
mask.golden mask.padding-is-absence mask.broadcast mask.per-item mask.per-head mask.forms-agree
mask.single-key mask.no-leak mask.empty-row mask.bias mask.bias-counts mask.causal
mask.causal-alignment mask.causal-combined mask.causal-first-key mask.causal-and-mask
equivariance.tokens equivariance.queries equivariance.keys equivariance.batch equivariance.heads
equivariance.batch-independent groups.golden groups.equals-repeated groups.order window.golden
window.edge window.unlimited window.causal window.alignment softcap.before-mask cache.golden
cache.position-offset cache.untouched-tail cache.decode-equals-full numerics.subnormal
""".split()
)


LARGEST: Final = 9  # queries and keys that a picture can show
_DTYPE: Final = "float32"


def picture(slug: str) -> str:
    """The picture of a clause as SVG; the same for the same clause and golden.

    Raises LookupError for a clause of which no problem of a picture's size binds.
    """
    return described(evidence(slug))


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """One binding example of a clause, compared with its counterfactual.

    required, counterfactual
        Which keys each query may attend, as required and in the counterfactual, bool
        ``[B, H, Lq, Lk]``; ``counterfactual`` is None where it has other sizes, or is no answer of
        the golden.
    moved, judged
        Which elements of the answer the counterfactual moves by more than the bound, and which
        are compared; bool ``[B, H, rows, channels]``.
    """

    clause: Clause
    problem: Problem
    required: Tensor
    counterfactual: Tensor | None
    moved: Tensor
    judged: Tensor


class RecordingOracle(Oracle):
    """An oracle that records its inputs, and how many counterfactuals were compared before."""

    def __init__(self, subject: Subject, compared: list[CounterfactualDifference]) -> None:
        super().__init__(subject.declaration, subject.dtype)
        self.compared = compared
        self.inputs: list[tuple[int, Inputs]] = []
        self.others: list[tuple[int, Inputs, golden.Semantics]] = []

    def answer(self, inputs: Inputs) -> Golden:
        """The golden answer, which is recorded."""
        self.inputs.append((len(self.compared), inputs))
        return super().answer(inputs)

    def output(self, inputs: Inputs, semantics: golden.Semantics | None = None) -> Tensor:
        """The golden output, which is recorded with its point of the semantics."""
        point = semantics or self.declaration.semantics
        self.others.append((len(self.compared), inputs, point))
        return super().output(inputs, semantics)


def evidence(slug: str) -> Evidence:
    """The first small edge problem of a clause that binds because a part of the answer moves.

    Where all of it moves in every problem, the first of them. Raises LookupError where no small
    problem binds, or none is for a core.
    """
    clause = next(clause for clause in all_clauses() if clause.id == slug)
    whole: Evidence | None = None
    for example in _binding(clause):
        if bool((example.judged & ~example.moved).any()):
            return example
        whole = whole or example
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
                example = _tried(clause, candidate, problem)
                if example is not None:
                    yield example


def _tried(clause: Clause, candidate: Candidate, problem: Problem) -> Evidence | None:
    """The evidence of one example; None where it does not bind or compares nothing."""
    subject = Subject(candidate, _DTYPE)
    with watching_counterfactuals() as compared:
        oracle = RecordingOracle(subject, compared)
        subject.oracle = oracle
        finding = examine(clause, subject, problem)
    shown = next((n for n, each in enumerate(compared) if bool(each.moved.any())), None)
    calls = [inputs for before, inputs in oracle.inputs if shown is not None and before <= shown]
    others = [(inputs, point) for before, inputs, point in oracle.others if before == shown]
    if not finding.binding or shown is None or not calls:
        return None
    required = _allowed(calls[-1], candidate.declaration.semantics)
    other = _allowed(*others[-1]) if others else None
    return Evidence(
        clause=clause,
        problem=problem,
        required=required,
        counterfactual=other if other is not None and other.shape == required.shape else None,
        moved=compared[shown].moved,
        judged=compared[shown].judged,
    )


def _allowed(inputs: Inputs, point: golden.Semantics) -> Tensor:
    """Which keys each query attends, ``[B, H, Lq, Lk]``."""
    evaluated = evaluate(inputs, point)
    core = evaluated if isinstance(evaluated, golden.Attention) else evaluated.core
    return core.allowed.to(torch.bool)


def described(example: Evidence) -> str:
    """The picture of one item and head of an example, the first that shows both kinds of cells."""
    item, head = _shown(example)
    required = _of(example.required, item, head)
    other = example.counterfactual
    sight = _sight(required, required if other is None else _of(other, item, head))
    motion = _motion(example.moved[item, head], example.judged[item, head])
    count = f"{int(example.moved.sum())} of {int(example.judged.sum())} judged elements move"
    note = f"{_example(example)}; item {item}, head {head}; {count} in all"
    clause = example.clause
    return draw(
        f"What binds {clause.id}",
        f"{clause.sentence} Counterfactual: {clause.counterfactual}. Example: {note}.",
        [
            Panel(title="What a query may see", rows="query", columns="key", cells=sight),
            Panel(
                title="What the counterfactual moves", rows="row", columns="channel", cells=motion
            ),
        ],
        note=note,
    )


def _of(table: Tensor, item: int, head: int) -> Tensor:
    """One item and head of a table, which may have fewer of them than the answer."""
    return table[min(item, table.shape[0] - 1), min(head, table.shape[1] - 1)]


def _shown(example: Evidence) -> tuple[int, int]:
    """The item and the head to show: where some judged elements move and others stay, if any."""
    items, heads = example.moved.shape[:2]
    places = [(item, head) for item in range(items) for head in range(heads)]

    def kinds(place: tuple[int, int]) -> int:
        moved, judged = example.moved[place], example.judged[place]
        return int(bool(moved.any())) + int(bool((judged & ~moved).any()) and bool(moved.any()))

    return max(places, key=kinds)


def _sight(required: Tensor, counterfactual: Tensor) -> list[str]:
    kinds = {(True, True): "b", (True, False): "r", (False, True): "c", (False, False): "."}
    return [
        "".join(kinds[before, after] for before, after in zip(*row, strict=True))
        for row in zip(required.tolist(), counterfactual.tolist(), strict=True)
    ]


def _motion(moved: Tensor, judged: Tensor) -> list[str]:
    return [
        "".join(
            "-" if not looked else "m" if moves else "s" for moves, looked in zip(*row, strict=True)
        )
        for row in zip(moved.tolist(), judged.tolist(), strict=True)
    ]


def _example(example: Evidence) -> str:
    """The problem in a few words."""
    problem = example.problem
    parts = [f"values {problem.values}", f"seed {problem.seed}"]
    if problem.mask is not None:
        parts.insert(0, f"mask {problem.mask.pattern} as {problem.mask.form}")
    if problem.causal:
        parts.insert(0, "causal")
    if problem.window is not None:
        parts.insert(0, f"window {problem.window}")
    return ", ".join(parts)
