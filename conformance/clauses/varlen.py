"""varlen.*: sequences of different lengths, one after another in one tensor."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..calls.differentiating import INPUT_NAMES, NotDifferentiable
from ..declare.candidate import Candidate
from ..declare.declaration import CACHE_WRITE, SEQUENCES
from ..oracle.comparison import add_relation, compare, moves
from ..problems.inputs import Inputs
from ..problems.mask_patterns import NO_KEYS, NO_QUERIES, NO_TOKENS
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import Space
from .empty_rows import follows_empty_rule
from .gradients import gradients_with_empty_rows, rows_are_finite
from .judging import column, matches_golden, wide_range
from .judging_gradients import (
    cannot_be_judged,
    compare_gradients,
    drawn_gradients_match,
    has_golden_gradients,
    output_gradient,
    records_gradients,
    with_full_rows,
)
from .rearranging import reordered_items
from .registry import Finding, clause
from .subject import Subject

SOURCE = "flash_attn_varlen_func: cu_seqlens_q, cu_seqlens_k"
RAGGED = ("random", "single")  # random lengths, and a single query per sequence
# The factor on a neighbour's values, so that a leak with a tiny weight shows, too.
NEIGHBOURS = 1e4
HALF_NEIGHBOURS = 1e1


def _space(causal: str = "maybe", patterns: tuple[str, ...] = RAGGED) -> Space:
    """Sequences of different lengths: at least two, three where they fit."""
    return Space(
        mask="always",
        forms=(SEQUENCES,),
        patterns=patterns,
        causal=causal,  # type: ignore[arg-type]  # one of the words of Often
        extras="maybe",
        values=LIVELY,
        least=(("batch", 2), ("key_length", 2)),
        preferred=(("query_length", 3), ("key_length", 3), ("batch", 3)),
    )


def _takes_sequences(candidate: Candidate) -> str:
    declared = candidate.declaration
    if not declared.head_layout.has_all_queries:
        return ""
    return f"its layout is {declared.layout}, not varlen"


def _of_other_lengths(candidate: Candidate) -> str:
    tied = candidate.declaration.pins.ties_lengths
    return "its geometry gives each sequence as many keys as queries" if tied else ""


def _may_lack_keys(candidate: Candidate) -> str:
    writes = CACHE_WRITE in candidate.declaration.features
    return "each query comes with a key that the call writes" if writes else ""


@clause(
    "varlen.golden",
    sentence=(
        "Each sequence answers with its own tokens alone, from where its offset says to where the "
        "next begins."
    ),
    source=SOURCE,
    space=_space(),
    needs_golden=True,
    counterfactual="every sequence as long as the longest",
    applies=(_takes_sequences,),
)
def varlen_golden(subject: Subject, problem: Problem) -> Finding:
    """Sequences of different lengths against the golden over padded and masked sequences."""
    inputs = subject.inputs(problem)
    wording = "among sequences of different lengths an answer is wrong"
    return matches_golden(subject, inputs, wording, counterfactual=inputs.without_mask())


@clause(
    "varlen.causal",
    sentence=(
        "The causal diagonal is aligned to the tokens of each sequence, not to those of the "
        "longest or of all."
    ),
    source=f"{SOURCE}; flash-attention 2.1: aligned to the bottom right corner of each sequence",
    space=_space(causal="always"),
    needs_golden=True,
    counterfactual="no causality",
    applies=(_takes_sequences,),
)
def varlen_causal(subject: Subject, problem: Problem) -> Finding:
    """The golden at the declared alignment, for queries and keys of different numbers each."""
    inputs = subject.inputs(problem)
    wording = "the causal diagonal of a sequence is not aligned to its own tokens"
    return matches_golden(subject, inputs, wording, counterfactual=inputs.replace(causal=False))


@clause(
    "varlen.independent",
    sentence="The answer of a sequence does not depend on the sequences beside it.",
    source=f"{SOURCE}; TransformerEngine, axolotl: packed sequences that attend each other",
    space=_space(),
    counterfactual="the keys of a neighbour attended, too",
    applies=(_takes_sequences,),
)
def varlen_independent(subject: Subject, problem: Problem) -> Finding:
    """Give every other sequence new tokens with large values; judge the one sequence that stays."""
    inputs = subject.inputs(problem)
    item = problem.seed % inputs.geometry.batch
    stays = torch.arange(inputs.geometry.batch) == item
    return _undisturbed(subject, inputs, _with_neighbours(subject, inputs, stays, problem), stays)


@clause(
    "varlen.empty-sequence",
    level="SHOULD",
    sentence="A sequence without any token is left out and disturbs none of the others.",
    source=f"{SOURCE}: two equal offsets; pytorch#188765",
    space=_space(patterns=(NO_TOKENS,)),
    needs_golden=True,
    counterfactual="every sequence as long as the longest",
    applies=(_takes_sequences,),
)
def varlen_empty_sequence(subject: Subject, problem: Problem) -> Finding:
    """About a third of the sequences have no queries and no keys."""
    inputs = subject.inputs(problem)
    wording = "next to a sequence without tokens an answer is wrong"
    finding = matches_golden(subject, inputs, wording, counterfactual=inputs.without_mask())
    absent = inputs.absent
    none = absent is not None and bool(absent.flatten(1).all(dim=1).any())
    return finding.only_if(none)


@clause(
    "varlen.no-queries",
    sentence="A sequence that has keys but no queries adds no row and disturbs no other sequence.",
    source=f"{SOURCE}: two equal offsets of queries, as for requests that wait in a batch",
    space=_space(patterns=(NO_QUERIES,)),
    needs_golden=True,
    counterfactual="every sequence as long as the longest",
    applies=(_takes_sequences, _of_other_lengths),
)
def varlen_no_queries(subject: Subject, problem: Problem) -> Finding:
    """Some sequences lack queries, among them the first, a middle one or the last."""
    inputs = subject.inputs(problem)
    wording = "next to a sequence without queries an answer is wrong"
    finding = matches_golden(subject, inputs, wording, counterfactual=inputs.without_mask())
    return _where_some_lack(finding, inputs, queries=True)


@clause(
    "varlen.no-keys",
    level="SHOULD",
    sentence=(
        "The queries of a sequence without keys return what is declared for rows without keys, "
        "and disturb no other sequence."
    ),
    source=f"{SOURCE}; flash-attention#1159; a SHOULD: no paper defines them",
    space=_space(patterns=(NO_KEYS,)),
    needs_golden=True,
    counterfactual="every sequence as long as the longest",
    applies=(_takes_sequences, _of_other_lengths, _may_lack_keys),
)
def varlen_no_keys(subject: Subject, problem: Problem) -> Finding:
    """The other sequences against the golden, then the rows without keys against their rule."""
    inputs = subject.inputs(problem)
    wording = "next to a sequence without keys an answer is wrong"
    finding = matches_golden(subject, inputs, wording, counterfactual=inputs.without_mask())
    rule = subject.oracle.empty_rule(inputs)
    if rule in ("zeros", "nan"):  # without keys there is no mean
        description = (
            f"the queries of a sequence without keys do not return what is declared ({rule})"
        )
        empty = follows_empty_rule(subject, inputs, subject.answer(inputs), rule, description)
        margins = [margin for margin in (finding.margin, empty.margin) if margin is not None]
        finding = Finding(
            binding=finding.binding,
            margin=max(margins, default=None),
            violation=finding.violation or empty.violation,
        )
    return _where_some_lack(finding, inputs, queries=False)


@clause(
    "varlen.no-queries-gradients",
    sentence=(
        "Beside a sequence without queries every gradient is that of the specified attention; the "
        "keys and values of that sequence get none."
    ),
    source=f"{SOURCE}; gradients that no block writes hold what was in memory",
    space=_space(patterns=(NO_QUERIES,)),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(_takes_sequences, _of_other_lengths, has_golden_gradients),
)
def varlen_no_queries_gradients(subject: Subject, problem: Problem) -> Finding:
    """A random output gradient, against the golden backward pass in float64."""
    inputs = with_full_rows(subject, problem, whole=True)
    finding = drawn_gradients_match(subject, problem, inputs)
    return _where_some_lack(finding, subject.inputs(problem), queries=True)


@clause(
    "varlen.no-keys-gradients",
    level="SHOULD",
    sentence=(
        "A sequence without keys leaves every gradient finite; where its queries answer zeros, "
        "they get none, and those of the other sequences are right."
    ),
    source=f"{SOURCE}; pytorch#41508: NaN gradients from rows without keys",
    space=_space(patterns=(NO_KEYS,)),
    counterfactual="a sequence without keys",
    applies=(_takes_sequences, _of_other_lengths, records_gradients, rows_are_finite),
)
def varlen_no_keys_gradients(subject: Subject, problem: Problem) -> Finding:
    """Rows without keys get an output gradient like the others."""
    finding = gradients_with_empty_rows(subject, problem)
    return _where_some_lack(finding, subject.inputs(problem), queries=False)


@clause(
    "varlen.no-keys-neighbours",
    sentence=(
        "Beside a sequence without keys, where the call is not refused, the answers of the other "
        "sequences and their gradients are right."
    ),
    source=f"{SOURCE}; gradients that a loop leaves with the first sequence that has no keys",
    space=_space(patterns=(NO_KEYS,)),
    needs_golden=True,
    counterfactual="every sequence as long as the longest",
    applies=(_takes_sequences, _of_other_lengths, _may_lack_keys),
)
def varlen_no_keys_neighbours(subject: Subject, problem: Problem) -> Finding:
    """Judge only sequences with keys, against the golden over their own keys."""
    inputs = subject.inputs(problem)
    if not subject.answers(inputs):
        reason = "it does not answer beside a sequence without keys"
        return Finding(inapplicable=reason)
    wording = "next to a sequence without keys an answer is wrong"
    finding = matches_golden(subject, inputs, wording, counterfactual=inputs.without_mask())
    if finding.violation is None and not has_golden_gradients(subject.candidate):
        of_gradients = _gradients_of_others(subject, problem, inputs)
        if of_gradients.violation is not None:
            finding = of_gradients
    return _where_some_lack(finding, inputs, queries=False)


def _gradients_of_others(subject: Subject, problem: Problem, inputs: Inputs) -> Finding:
    """The gradients of sequences with keys, for an output gradient of all rows.

    Not judged where rows without keys answer with numbers that are not finite: these are declared,
    or unspecified, and may be in every gradient.
    """
    if inputs.present is None:
        return Finding(binding=False)
    lacking = ~inputs.present[1].any(dim=1)
    order = (~lacking).nonzero().flatten()
    others = reordered_items(inputs, order).replace(present=None)
    if cannot_be_judged(subject, others):
        return Finding(binding=False)
    drawn = torch.randn(inputs.output_shape, generator=generator_for(problem, 34))
    upstream = output_gradient(subject, problem, inputs)
    rows = lacking[:, None, None, None] & inputs.present[0][:, None, :, None]
    upstream = torch.where(rows, drawn.to(upstream.dtype), upstream)
    try:
        gradients = subject.gradients.of(inputs, upstream)
    except NotDifferentiable:
        return Finding(binding=False)
    if not bool(gradients.output.isfinite().all()):
        return Finding(binding=False)
    names = INPUT_NAMES[inputs.mode]
    by_name = {name: gradients.by_name[name][order] for name in names}
    own = dataclasses.replace(gradients, by_name=by_name)
    expected = subject.gradients.oracle.answer(others, upstream[order])
    return compare_gradients(subject, others, expected, own)


def _where_some_lack(finding: Finding, inputs: Inputs, *, queries: bool) -> Finding:
    """The finding, binding only where some sequence has no queries, or no keys."""
    if inputs.present is None:
        return dataclasses.replace(finding, binding=False)
    some = bool((~inputs.present[0 if queries else 1].any(dim=1)).any())
    return finding.only_if(some)


def _with_neighbours(subject: Subject, inputs: Inputs, stays: Tensor, problem: Problem) -> Inputs:
    """Draw new tokens for every sequence except the unchanged ``stays``."""
    size = NEIGHBOURS if wide_range(subject) else HALF_NEIGHBOURS
    where, generator = stays.reshape(-1, 1, 1, 1), generator_for(problem, 21)

    def other(tokens: Tensor, factor: float = 1.0) -> Tensor:
        drawn = torch.randn(tokens.shape, generator=generator, dtype=torch.float64) * factor
        return torch.where(where, tokens, drawn.to(tokens.dtype))

    return inputs.with_tokens(
        query=other(inputs.query), key=other(inputs.key), value=other(inputs.value, size)
    )


def _undisturbed(subject: Subject, inputs: Inputs, other: Inputs, stays: Tensor) -> Finding:
    """Compare the answers of the sequences ``stays``; both carry the errors of the first call."""
    golden_output, bound, judged = subject.frame(inputs)
    judged = judged & stays.reshape(-1, 1, 1, 1)
    first, second = subject.answer(inputs), subject.answer(other)
    allowed = 2.0 * column(bound)
    wording = "other tokens in the neighbouring sequences change the answer of a sequence"
    agreement = compare(second, first, allowed, judged=judged, wording=wording, both_answers=True)
    binding = bool(judged.any())
    if binding and golden_output is not None:
        binding = moves(golden_output, subject.oracle.output(_leaking(other)), allowed, judged)
    violation = add_relation(
        agreement.violation,
        subject.recording,
        expected=[(first, None)],
        got=[(second, None)],
    )
    return Finding(binding=binding, margin=agreement.margin, violation=violation)


def _leaking(inputs: Inputs) -> Inputs:
    """Let every sequence attend its own keys and its predecessor's."""
    keep = inputs.keep
    both = None if keep is None else torch.cat([_of_neighbour(keep), keep], dim=-1)
    return inputs.replace(
        geometry=inputs.geometry.replace(key_length=2 * inputs.geometry.key_length),
        key=torch.cat([inputs.key.roll(1, dims=0), inputs.key], dim=2),
        value=torch.cat([inputs.value.roll(1, dims=0), inputs.value], dim=2),
        keep=both,
        causal=False,
        window=None,
        generic=False,
    )


def _of_neighbour(keep: Tensor) -> Tensor:
    """The predecessor's keys, for each existing query of a sequence."""
    return keep.any(dim=-1, keepdim=True) & keep.roll(1, dims=0).any(dim=-2, keepdim=True)
