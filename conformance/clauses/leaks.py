"""mask.no-leak*: what a query may not attend never changes its answer."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..calls.calling import CandidateFailure
from ..declare.candidate import Candidate
from ..declare.declaration import SEQUENCES
from ..oracle.comparison import compare, moves, with_relation
from ..oracle.oracle import evaluate
from ..problems.fitting import counts_from_first_key
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space, admits_lengths, allowed_sizes, can_cross, tied_fields
from .judging import column, first_place, knows_nan, narrow_range, relate, wide_range
from .registry import Finding, clause, declares, violated
from .subject import Subject

# Logits of junk stay below this, so that a finite fill fails mask.single-key and not everything.
LARGEST_JUNK_LOGIT = 5e4
HALF_JUNK_LOGIT = 1e2
JUNK_VALUES = (1e2, 1e6, 1e12)
HALF_JUNK_VALUES = (1e1, 1e2, 1e3)
UNMEASURED_JUNK = 10.0
NON_FINITE = (math.nan, math.inf, -math.inf)
LIVELY_MASK = Space(mask="always", values=LIVELY, least=(("key_length", 2),))


@clause(
    "mask.no-leak",
    sentence=(
        "Finite values in keys and values that a query may not attend never change its answer."
    ),
    source="pytorch#101967; DESIGN: finite junk is the MUST",
    space=LIVELY_MASK,
    counterfactual="no mask at all",
)
def no_leak(subject: Subject, problem: Problem) -> Finding:
    """Large finite junk in hidden keys and values; rows that attend none of them are judged."""
    inputs = subject.inputs(problem)
    return unaffected(subject, problem, inputs, hidden_keys(subject, problem, inputs))


@clause(
    "mask.no-leak-nonfinite",
    level="SHOULD",
    sentence=(
        "NaN and infinities in keys and values that a query may not attend never change its answer."
    ),
    source="pytorch#101967; IMPLEMENTATIONS: 0 * NaN poisons almost everyone",
    space=LIVELY_MASK,
    applies=(knows_nan,),
    explained=False,
)
def no_leak_nonfinite(subject: Subject, problem: Problem) -> Finding:
    """NaN or infinities in hidden keys and values."""
    inputs = subject.inputs(problem)
    hidden = hidden_keys(subject, problem, inputs)
    filler = NON_FINITE[problem.seed % len(NON_FINITE)]
    return unaffected(subject, problem, inputs, hidden, filler=filler)


def hidden_keys(subject: Subject, problem: Problem, inputs: Inputs) -> Tensor:
    """Some keys of each item, bool ``[B, Lk]``, that one random row may not attend."""
    allowed = inputs.allowed(subject.declaration.semantics)
    rows = allowed.flatten(1, 2)
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
    """Rows that attend none of ``junk_keys`` (bool ``[B, Lk]``) answer alike with and without junk.

    Both answers carry at most the bound of the clean problem: what a row does not attend has no
    part in its rounding errors, unless those follow the range of a whole tensor.
    """
    dirty = with_junk(subject, problem, inputs, junk_keys, filler)
    judged = rows_apart(subject, inputs, junk_keys)
    known, bound, alive = subject.frame(inputs)
    judged = judged & alive
    clean_answer = subject.answer(inputs)
    told = "junk" if filler is None else str(filler)
    wording = f"{told} in keys that a query may not attend changes its answer"
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
    if binding and known is not None and filler is None:
        free = dirty.without_mask() if counterfactual is None else counterfactual
        junked = free.with_tokens(query=dirty.query, key=dirty.key, value=dirty.value)
        binding = moves(known, subject.oracle.output(junked), allowed, judged)
    violation = with_relation(
        agreement.violation,
        subject.recording,
        expected=[(clean_answer, None)],
        got=[(dirty_answer, None)],
    )
    return Finding(binding=binding, margin=agreement.margin, violation=violation)


def rows_apart(subject: Subject, inputs: Inputs, junk_keys: Tensor) -> Tensor:
    """Rows that attend no junk; where tokens are queries too, the junk's own rows are left out."""
    allowed = inputs.allowed(subject.declaration.semantics)
    apart = ~(allowed & junk_keys[:, None, None, :]).any(dim=-1)
    if inputs.mode == "self":
        apart = apart & ~junk_keys[:, None, inputs.past :]  # what is cached asks nothing
    return apart.all(dim=1).unsqueeze(-1) if inputs.is_layer else apart.unsqueeze(-1)


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
    if "any" in declared.empty_rules:
        return "it promises nothing about rows without keys"
    given = set(declared.masks) - {SEQUENCES}  # which hide what is not even handed over
    if not given and declared.causal != "bottom-right":
        return "neither a mask nor its causal alignment can empty a row"
    if not given and counts_from_first_key(candidate):
        return "its positions count from the first key, and no query stands before it"
    return ""


_returns_weights = declares("weights", "it returns no attention weights")


def _under_a_rule(subject: Subject, problem: Problem, *, weights: bool) -> tuple[Inputs, str]:
    """A call, and the rule that its rows without keys follow, "any" where none can be had.

    Where rules differ by way, the call has a form of mask that has one, or the flag alone.
    """
    declared = subject.declaration
    if declared.empty_rows_by:
        ways = [
            *((form, shape) for form, shape in EMPTY.options(subject.candidate)),
            *([] if declared.causal is None or declared.always_causal else [(None, "")]),
        ]
        ways = [
            (form, shape)
            for form, shape in ways
            if declared.empty_rule(form=form, causal=form is None, weights=weights) != "any"
        ]
        if ways:
            problem = _by_way(subject.candidate, problem, *ways[problem.seed % len(ways)])
    asked = subject.inputs(problem).replace(return_weights=weights)
    return asked, subject.oracle.empty_rule(asked)


def _by_way(candidate: Candidate, problem: Problem, form: str | None, shape: str) -> Problem:
    """The problem with a mask of one form alone, or with the flag and more queries than keys."""
    if form is not None and problem.mask is not None:
        plan = problem.mask.replace(form=form, shape=shape, finite_bias=False)
        return problem.replace(mask=plan, causal=candidate.declaration.always_causal)
    sizes = problem.geometry
    more = sizes.replace(query_length=max(sizes.query_length, sizes.key_length + 1))
    crosses = can_cross(candidate) and admits_lengths(candidate, more)
    return problem.replace(mask=None, causal=True, geometry=more if crosses else sizes)


@clause(
    "mask.empty-row",
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
    inputs, rule = _under_a_rule(subject, problem, weights=False)
    wording = f"a query without any key does not return what is declared ({rule})"
    return follows_empty_rule(subject, inputs, subject.answer(inputs), rule, wording)


@clause(
    "mask.empty-row-weights",
    sentence=(
        "A query without any key returns what is declared also where the weights are asked for."
    ),
    source="torch.nn.MultiheadAttention: zeros with need_weights=False, NaN with need_weights=True",
    space=EMPTY.replace(share=0.5),
    needs_golden=True,
    counterfactual="another rule for empty rows",
    applies=(_promised, _returns_weights),
)
def empty_row_weights(subject: Subject, problem: Problem) -> Finding:
    """The output beside the weights is judged; of the weights themselves nothing is promised."""
    inputs, rule = _under_a_rule(subject, problem, weights=True)
    wording = f"with return_weights=True a query without any key does not return {rule}"
    return follows_empty_rule(subject, inputs, subject.answer(inputs), rule, wording)


def follows_empty_rule(
    subject: Subject, inputs: Inputs, answer: Tensor, rule: str, wording: str
) -> Finding:
    """Whether rows without keys hold what a rule says; no others are looked at."""
    if rule == "any":
        return Finding(binding=False)
    known = subject.golden(inputs)
    rows = known.empty_rows & known.representable
    expected_nan = rows.expand(answer.shape) & torch.isnan(known.output)
    wrong = expected_nan & ~torch.isnan(answer)
    if bool(wrong.any()):
        place = first_place(wrong)
        got = float(answer[place])
        message = f"{wording} at {list(place)}: expected NaN, got {got:.9g}"
        return violated("value", message, expected="nan", got=got, where=list(place))
    agreement = compare(answer, known.output, known.bound, judged=rows, wording=wording)
    other = subject.oracle.point(inputs).replace(
        empty_rows="zeros" if rule != "zeros" else "mean-of-all"
    )
    moved = moves(known.output, subject.oracle.output(inputs, other), known.bound, rows)
    return Finding.of(agreement, binding=bool(rows.any()) and moved)


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
    wording = "an empty row changes the answer of other rows"
    finding = relate(subject, (filled, subject.answer(filled)), (inputs, answer), wording)
    return finding.only_if(bool(empty.any()))
