"""mask.no-leak*: hidden keys and values never change a query's answer."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..calls.calling import CandidateFailure
from ..declare.declaration import PADDED_QUERIES
from ..oracle.comparison import add_relation, compare, moves
from ..oracle.oracle import evaluate
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import ANY_FORM, Space
from .judging import can_hold_nan, column, narrow_range, wide_range
from .registry import Finding, clause
from .subject import Subject

# Logits of junk stay below this, so that a finite fill fails mask.single-key alone.
LARGEST_JUNK_LOGIT = 5e4
HALF_JUNK_LOGIT = 1e2
JUNK_VALUES = (1e2, 1e6, 1e12)
HALF_JUNK_VALUES = (1e1, 1e2, 1e3)
UNMEASURED_JUNK = 10.0
_LARGE_QUERY: Final = 1e3
NON_FINITE = (math.nan, math.inf, -math.inf)
LIVELY_MASK = Space(mask="always", values=LIVELY, least=(("key_length", 2),), forms=ANY_FORM)


@clause(
    "mask.no-leak",
    sentence=(
        "Finite values in keys and values that a query may not attend never change its answer."
    ),
    source="pytorch#101967; by definition: a weight of zero times a finite value is zero",
    space=LIVELY_MASK,
    counterfactual="no mask at all",
)
def no_leak(subject: Subject, problem: Problem) -> Finding:
    """Put large finite junk into hidden keys and values; rows that attend no junk are judged."""
    inputs = subject.inputs(problem)
    return unaffected(subject, problem, inputs, hidden_keys(subject, problem, inputs))


@clause(
    "mask.no-leak-nonfinite",
    level="SHOULD",
    sentence=(
        "NaN and infinities in keys and values that a query may not attend never change its answer."
    ),
    source="pytorch#101967; a SHOULD: 0 * NaN is NaN (IEEE 754-2019, 6.2) in right kernels, too",
    space=LIVELY_MASK,
    applies=(can_hold_nan,),
    explained=False,
)
def no_leak_nonfinite(subject: Subject, problem: Problem) -> Finding:
    """NaN or infinities in hidden keys and values."""
    inputs = subject.inputs(problem)
    hidden = hidden_keys(subject, problem, inputs)
    filler = NON_FINITE[problem.seed % len(NON_FINITE)]
    return unaffected(subject, problem, inputs, hidden, filler=filler)


def hidden_keys(subject: Subject, problem: Problem, inputs: Inputs) -> Tensor:
    """The keys of each item hidden from a randomly drawn row: bool ``[B, Lk]``."""
    point = subject.declaration.semantics
    mixed = inputs.is_layer and "reinterpret" in (point.head_split, point.head_merge)
    rows = inputs.reached(point) if mixed else inputs.allowed(point).flatten(1, 2)
    generator = generator_for(problem, 2)
    chosen = torch.randint(rows.shape[1], (rows.shape[0],), generator=generator)
    return ~rows[torch.arange(rows.shape[0]), chosen]


def unaffected(
    subject: Subject,
    problem: Problem,
    inputs: Inputs,
    junk_keys: Tensor,
    *,
    filler: float | None = None,
    counterfactual: Inputs | None = None,
) -> Finding:
    """Compare rows that attend none of ``junk_keys`` (bool ``[B, Lk]``) with and without junk.

    Both answers carry at most the bound of the clean problem: unattended keys have no part in a
    row's rounding errors, unless the errors follow the range of a whole tensor.
    """
    dirty = with_junk(subject, problem, inputs, junk_keys, filler)
    judged = rows_apart(subject, inputs, junk_keys)
    golden_output, bound, alive = subject.frame(inputs)
    judged = judged & alive
    clean_answer = subject.any_answer(inputs)
    content = "junk" if filler is None else str(filler)
    wording = f"{content} in keys that a query may not attend changes its answer"
    try:
        dirty_answer = subject.answer(dirty)
    except CandidateFailure as failure:
        return Finding(violation=failure.violation)
    ranged = bool(subject.declaration.precision)
    allowed = column(bound) + column(subject.frame(dirty)[1] if ranged else bound)
    agreement = compare(
        dirty_answer, clean_answer, allowed, judged=judged, wording=wording, both_answers=True
    )
    binding = bool((judged & junk_keys.any()).any())
    if binding and golden_output is not None and filler is None:
        free = dirty.without_mask() if counterfactual is None else counterfactual
        junked = free.with_tokens(query=dirty.query, key=dirty.key, value=dirty.value)
        binding = moves(golden_output, subject.oracle.output(junked), allowed, judged)
    violation = add_relation(
        agreement.violation,
        subject.recording,
        expected=[(clean_answer, None)],
        got=[(dirty_answer, None)],
    )
    return Finding(binding=binding, margin=agreement.margin, violation=violation)


def rows_apart(subject: Subject, inputs: Inputs, junk_keys: Tensor) -> Tensor:
    """Rows that attend no junk; where tokens are also queries, rows of junk tokens are left out."""
    point = subject.declaration.semantics
    junk = junk_keys.unsqueeze(1) if inputs.is_layer else junk_keys[:, None, None]
    meets = (inputs.reached(point) & junk).any(dim=-1, keepdim=True)
    if inputs.mode == "self":
        queries = junk[..., inputs.past :]  # cached tokens are no queries
        meets = meets | (inputs.own_rows(point) & queries).any(dim=-1, keepdim=True)
    return ~meets


def with_junk(
    subject: Subject,
    problem: Problem,
    inputs: Inputs,
    junk_keys: Tensor,
    filler: float | None = None,
    *,
    share: float = 1.0,
) -> Inputs:
    """The inputs with junk (or a filler) in some keys and their values, ``junk_keys [B, Lk]``.

    ``share`` makes junk smaller.
    """
    where = junk_keys.unsqueeze(-1) if inputs.is_layer else junk_keys[:, None, :, None]
    generator = generator_for(problem, 3)
    key = torch.randn(inputs.key.shape, generator=generator).double()
    value = torch.randn(inputs.value.shape, generator=generator).double()
    if filler is not None:
        key, value = torch.full_like(key, filler), torch.full_like(value, filler)
    else:
        wide = wide_range(subject) and not subject.declaration.precision
        limits = JUNK_VALUES if wide else HALF_JUNK_VALUES
        value = value * (share * limits[problem.seed % len(limits)])
        key = key * (share * _junk_factor(subject, inputs, key))
    return inputs.with_tokens(
        key=torch.where(where, key.to(inputs.key.dtype), inputs.key),
        value=torch.where(where, value.to(inputs.value.dtype), inputs.value),
    )


def _junk_factor(subject: Subject, inputs: Inputs, key: Tensor) -> float:
    """How much larger the junk keys can be made with logits still below the limit."""
    if not subject.candidate.golden_known or inputs.mode == "self":
        return UNMEASURED_JUNK
    free = inputs.without_mask().replace(causal=False, window=None)
    junk = free.with_tokens(key=key)
    evaluation = evaluate(junk, golden.STANDARD)
    core = evaluation if isinstance(evaluation, golden.Attention) else evaluation.core
    largest = float(core.scores.abs().max()) if core.scores.numel() else 0.0
    narrow = narrow_range(subject)
    limit = HALF_JUNK_LOGIT if narrow else LARGEST_JUNK_LOGIT
    return limit / largest if largest > 0.0 else 1.0


@clause(
    "mask.padded-queries",
    sentence=(
        "Queries behind the lengths of an item are padding: whatever they hold changes no other "
        "answer, and their own is what is declared."
    ),
    source="by definition: the rows of an answer are independent; flash-attention: seqused_q",
    space=Space(
        mask="always",
        causal="maybe",
        extras="maybe",
        forms=(PADDED_QUERIES,),
        patterns=("random", "padding", "single"),
        values=LIVELY,
        least=(("query_length", 2), ("key_length", 2)),
    ),
    needs_golden=True,
    counterfactual="the lengths taken for those of keys",
    explained=False,
)
def padded_queries(subject: Subject, problem: Problem) -> Finding:
    """Junk, or NaN where the candidate can hold it, in the rows behind the lengths."""
    inputs = subject.inputs(problem)
    absent, keep = inputs.absent, inputs.keep
    if absent is None or keep is None:
        return Finding(binding=False)
    expected = subject.golden(inputs)
    holds = not can_hold_nan(subject.candidate)
    filler = math.nan if holds and problem.seed % 2 else _LARGE_QUERY
    where = absent.transpose(1, 2) if inputs.is_layer else absent.unsqueeze(-1)
    dirty = inputs.with_tokens(query=inputs.query.masked_fill(where, filler))
    answer = subject.answer(dirty)
    wording = f"{filler:g} in queries behind the lengths changes the answer to others"
    others = compare(
        answer, expected.output, expected.bound, judged=expected.judged, wording=wording
    )
    lengths = keep[..., 0].sum(dim=-1)[..., None, None]
    as_keys = inputs.replace(keep=torch.arange(inputs.geometry.key_length) < lengths)
    wrong = subject.oracle.output(as_keys)
    binding = moves(expected.output, wrong, expected.bound, expected.judged)
    if others.kind or subject.declaration.padded_rows == "any":
        return Finding.of(others, binding=binding)
    point = subject.declaration.semantics
    zeros = subject.oracle.answer_at(
        inputs, subject.oracle.point(inputs).replace(empty_rows="zeros")
    )
    rows = inputs.answer_rows(absent.expand(inputs.score_shape[:3]), point)
    own = compare(
        answer,
        zeros.output,
        zeros.bound,
        judged=rows.expand(zeros.output.shape),
        wording="a query behind the lengths is not answered with zeros, as declared",
    )
    return Finding.of(own, binding=bool(rows.any()))
