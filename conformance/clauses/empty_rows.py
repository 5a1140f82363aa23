"""mask.empty-row*: the answer of a query that may attend no key at all."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ..declare.candidate import Candidate
from ..declare.declaration import CACHE_WRITE, SEQUENCES
from ..oracle.comparison import compare, moves
from ..problems.fitting import counts_from_first_key
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import KEY_FORMS, Space, admits_lengths, allowed_sizes, can_cross, tied_fields
from ..problems.structured_masks import EMPTYING, STRUCTURED_MASKS
from .judging import attends_keys_alone, first_place, has_no_memory, relate
from .registry import Finding, clause, declares, violated
from .subject import Subject

EMPTY = Space(
    mask="offered",
    causal="maybe",
    forms=(*KEY_FORMS, "lengths", *EMPTYING),
    patterns=("empty-rows", "full-and-empty"),
    values=LIVELY,
)
EMPTY_BY_MASK = Space(
    mask="always",
    patterns=("empty-rows", "full-and-empty"),
    values=LIVELY,
    least=(("key_length", 2),),
    share=0.5,
    # So that full rows remain where the batch is pinned, or where there is one query.
    preferred=(("query_length", 2), ("batch", 2)),
)
COUNTED_BY: Final = {"B": "batch", "H": "num_heads", "Q": "query_length"}


def _promised(candidate: Candidate) -> str:
    if "any" in candidate.declaration.empty_rules:
        return "it promises nothing about rows without keys"
    return attends_keys_alone(candidate) or has_no_empty_rows(candidate)


def has_no_empty_rows(candidate: Candidate) -> str:
    """Why no call has a row without keys, or ""."""
    if candidate.has_memory:
        return has_no_memory(candidate)
    declared = candidate.declaration
    # The keys that sequences hide are not even passed; some structures leave each query a key.
    forms = set(declared.masks) - {SEQUENCES, *(STRUCTURED_MASKS.keys() - set(EMPTYING))}
    hides_own = declared.causal is not None and declared.semantics.causal_offset < 0
    if forms or hides_own:
        return ""
    if CACHE_WRITE in declared.features or declared.pins.sizes.get("query_length") == (1,):
        return "every query has a key of its own place"
    if declared.causal != "bottom-right" or not can_cross(candidate):
        return "neither a mask nor its causal alignment can empty a row"
    if counts_from_first_key(candidate):
        return "its positions count from the first key, and no query stands before it"
    return ""


_returns_weights = declares("weights", "it returns no attention weights")


def _under_a_rule(subject: Subject, problem: Problem, *, weights: bool) -> tuple[Inputs, str]:
    """A call, and the declared rule for its rows without keys ("any": no promise).

    Where the rule depends on how keys are hidden, the call uses a mask form with a rule, or the
    causal flag alone.
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
    inputs = before_all_keys(subject, subject.inputs(problem)).replace(return_weights=weights)
    return inputs, subject.oracle.empty_rule(inputs)


def before_all_keys(subject: Subject, inputs: Inputs) -> Inputs:
    """The inputs with an item's queries before its keys where causality goes by positions."""
    if inputs.positions is None or subject.declaration.semantics.causal_by != "positions":
        return inputs
    return inputs.replace(positions=inputs.positions.before_keys())


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
    """The output is judged; nothing is promised about the returned weights."""
    inputs, rule = _under_a_rule(subject, problem, weights=True)
    wording = f"with return_weights=True a query without any key does not return {rule}"
    return follows_empty_rule(subject, inputs, subject.answer(inputs), rule, wording)


def follows_empty_rule(
    subject: Subject, inputs: Inputs, answer: Tensor, rule: str, wording: str
) -> Finding:
    """Rows without keys follow the rule; only these rows are judged."""
    if rule == "any":
        return Finding(binding=False)
    expected = subject.golden(inputs)
    rows = expected.empty_rows & expected.representable
    expected_nan = rows.expand(answer.shape) & torch.isnan(expected.output)
    wrong = expected_nan & ~torch.isnan(answer)
    if bool(wrong.any()):
        place = first_place(wrong)
        got = float(answer[place])
        message = f"{wording} at {list(place)}: expected NaN, got {got:.9g}"
        return violated("value", message, expected="nan", got=got, where=list(place))
    agreement = compare(answer, expected.output, expected.bound, judged=rows, wording=wording)
    if subject.only_violations:
        return Finding.of(agreement, binding=bool(rows.any()))
    other = subject.oracle.point(inputs).replace(
        empty_rows="zeros" if rule != "zeros" else "mean-of-all"
    )
    moved = moves(expected.output, subject.oracle.output(inputs, other), expected.bound, rows)
    return Finding.of(agreement, binding=bool(rows.any()) and moved)


def _some_row_stays(candidate: Candidate) -> str:
    """Why no declared mask can empty one row and leave another, or ""."""
    options = EMPTY_BY_MASK.options(candidate)
    letters = {letter for _, shape in options for letter in shape}
    counted = {COUNTED_BY[letter] for letter in letters & set(COUNTED_BY)}
    for group in tied_fields(candidate, EMPTY_BY_MASK):
        sizes = allowed_sizes(group, candidate)
        if counted & set(group) and (sizes is None or any(size > 1 for size in sizes)):
            return ""
    return "its masks empty every row or none" if options else ""


@clause(
    "mask.empty-row-isolated",
    sentence="A query without any key never changes the answer of another query, head or item.",
    source="pytorch#160064: one fully masked head turns everything NaN",
    space=EMPTY_BY_MASK,
    applies=(_some_row_stays, has_no_memory),
)
def empty_row_isolated(subject: Subject, problem: Problem) -> Finding:
    """Let empty rows attend every key instead: all other rows must keep their answers."""
    inputs = subject.inputs(problem)
    if inputs.keep is None:
        return Finding(binding=False)
    empty = ~inputs.keep.any(dim=-1, keepdim=True)
    filled = inputs.replace(keep=inputs.keep | empty)
    answer = subject.answer(inputs)
    wording = "an empty row changes the answer of other rows"
    finding = relate(subject, (filled, subject.answer(filled)), (inputs, answer), wording)
    return finding.only_if(bool(empty.any()))
