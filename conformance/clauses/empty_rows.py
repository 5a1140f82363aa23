"""mask.empty-row*: what a query without any key returns, and that it disturbs nobody else."""

from __future__ import annotations

from typing import Final

import torch

from ..candidate import Candidate
from ..comparison import compare, moves
from ..declaration import SEQUENCES
from ..problem import Problem
from ..recipes import LIVELY
from ..registry import Finding, clause
from ..results import Violation
from ..settling import counts_from_first_key
from ..space import Space, allowed_sizes, tied_fields
from ..subject import Subject
from ._vocabulary import relate

EMPTY = Space(
    mask="offered",
    causal="maybe",
    patterns=("empty-rows", "full-and-empty"),
    values=LIVELY,
)
EMPTY_BY_MASK = Space(
    mask="always",
    patterns=("empty-rows", "full-and-empty"),
    values=LIVELY,
    least=(("key_length", 2),),
    share=0.5,
    # A pinned batch leaves rows beside the empty ones, and so does a single query in a batch.
    preferred=(("query_length", 2), ("batch", 2)),
)
COUNTED_BY: Final = {"B": "batch", "H": "num_heads", "Q": "query_length"}


def _promised(candidate: Candidate) -> str:
    declared = candidate.declaration
    if declared.empty_rows == "any":
        return "it promises nothing about rows without keys"
    given = set(declared.masks) - {SEQUENCES}  # which hide what is not even handed over
    if not given and declared.causal != "bottom-right":
        return "neither a mask nor its causal alignment can empty a row"
    if not given and counts_from_first_key(candidate):
        return "its positions count from the first key, and no query stands before it"
    return ""


@clause(
    "mask.empty-row",
    level="MUST",
    sentence=(
        "A query without any key returns what is declared: zeros, NaN or a mean of the values."
    ),
    source="pytorch#103963, mlx#2395; ONNX Attention-23",
    space=EMPTY,
    needs_golden=True,
    counterfactual="another rule for empty rows",
    applies=(_promised,),
)
def empty_row(subject: Subject, problem: Problem) -> Finding:
    """Only the empty rows are judged, by the declared rule."""
    inputs = subject.inputs(problem)
    known = subject.golden(inputs)
    rows = known.empty_rows & known.representable
    answer = subject.answer(inputs)
    rule = subject.declaration.empty_rows
    wording = f"a query without any key does not return what is declared ({rule})"
    expected_nan = rows.expand(answer.shape) & torch.isnan(known.output)
    wrong = expected_nan & ~torch.isnan(answer)
    if bool(wrong.any()):
        index = [int(i) for i in wrong.nonzero()[0]]
        got = float(answer[tuple(index)])
        message = f"{wording} at {index}: expected NaN, got {got:.9g}"
        violation = Violation(kind="value", message=message, expected="nan", got=got, where=index)
        return Finding(violation=violation)
    agreement = compare(answer, known.output, known.bound, judged=rows, wording=wording)
    other = subject.declaration.semantics.replace(
        empty_rows="zeros" if rule != "zeros" else "mean-of-all"
    )
    moved = moves(known.output, subject.oracle.output(inputs, other), known.bound, rows)
    return Finding(
        binding=bool(rows.any()) and moved, margin=agreement.margin, violation=agreement.violation
    )


def _some_row_stays(candidate: Candidate) -> str:
    """Why no declared mask can empty one row and leave another, or ""."""
    letters = {letter for _, shape in EMPTY_BY_MASK.options(candidate) for letter in shape}
    counted = {COUNTED_BY[letter] for letter in letters & set(COUNTED_BY)}
    for group in tied_fields(candidate, EMPTY_BY_MASK):
        sizes = allowed_sizes(group, candidate)
        if counted & set(group) and (sizes is None or any(size > 1 for size in sizes)):
            return ""
    return "its masks empty every row or none" if letters else ""


@clause(
    "mask.empty-row-isolated",
    level="MUST",
    sentence="A query without any key never changes the answer of another query, head or item.",
    source="pytorch#160064: one fully masked head turns everything NaN",
    space=EMPTY_BY_MASK,
    applies=(_some_row_stays,),
)
def empty_row_isolated(subject: Subject, problem: Problem) -> Finding:
    """The same problem with the empty rows given every key: the other rows must not notice."""
    inputs = subject.inputs(problem)
    if inputs.keep is None:
        return Finding(binding=False)
    empty = ~inputs.keep.any(dim=-1, keepdim=True)
    filled = inputs.replace(keep=inputs.keep | empty)
    answer = subject.answer(inputs)
    finding = relate(
        subject,
        (filled, subject.answer(filled)),
        (inputs, answer),
        "an empty row changes the answer of other rows",
    )
    return Finding(
        binding=finding.binding and bool(empty.any()),
        margin=finding.margin,
        violation=finding.violation,
    )
