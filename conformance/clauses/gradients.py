"""gradients.golden, .options, .bias, .masked-zero, .empty-row-finite, .causal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.calling import CandidateFailure
from ..calls.differentiating import INPUT_NAMES
from ..declare.candidate import Candidate
from ..oracle.headroom import largest_weight_gradient
from ..oracle.oracle import evaluate
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY
from ..problems.space import EVERY_OPTION, Space
from ..tolerance import model
from .judging import finite_limit, matches_golden, wide_range
from .judging_gradients import (
    GradientRun,
    by_kv_head,
    cannot_be_judged,
    compare_gradients,
    drawn_gradients_match,
    exactly_zero,
    first_wrong,
    has_empty_rows,
    has_golden_gradients,
    has_short_heads,
    inputs_for_gradients,
    matches_golden_gradients,
    output_gradient,
    promised_gradients,
    records_gradients,
    same_gradients,
    with_full_rows,
)
from .leaks import rows_apart, with_junk
from .options import unless_refused_alone
from .rearranging import read_heads
from .registry import Finding, clause
from .subject import Subject

# The factor on junk in half precision where the projections are unknown.
UNMEASURED = 0.01


def with_junk_to_differentiate(
    subject: Subject, problem: Problem, inputs: Inputs, junk_keys: Tensor, upstream: Tensor
) -> Inputs:
    """The inputs with junk in hidden keys and values, ``junk_keys [B, Lk]``.

    The gradient of a hidden weight is the product of output gradient and junk. An infinite product
    in float16, times a weight of zero, is NaN, which is no leak: so the product stays below a
    sixteenth of the largest number.
    """
    junked = with_junk(subject, problem, inputs, junk_keys)
    if not subject.candidate.golden_known:
        share = 1.0 if wide_range(subject) else UNMEASURED
    else:
        shown = junked.without_mask().replace(causal=False, window=None)  # the golden hides them
        evaluation = evaluate(shown, subject.declaration.semantics)
        largest = largest_weight_gradient(evaluation, upstream)
        share = model.HEADROOM * finite_limit(subject) / max(largest, 1.0)
    return junked if share >= 1.0 else with_junk(subject, problem, inputs, junk_keys, share=share)


BACKWARD = "Dao et al. 2022, appendix B.2"
# Patterns that hide keys from some rows.
HIDING = ("padding", "random", "one-hidden", "left-padding", "dense", "mixed", "sparse")
# Rules for rows without keys under which their gradients are finite.
FINITE_RULES = ("zeros", "mean-of-all", "mean-of-valid")


@clause(
    "gradients.golden",
    sentence=(
        "The gradients of query, key and value, of cached keys and values, and of the weights and "
        "biases of a layer that gradients reach, are those of the specified attention."
    ),
    source=f"{BACKWARD}; pytorch#97128; flash-attention#414: dq of a tile's tail",
    space=EVERY_OPTION.replace(least=(("key_length", 2),), share=0.5),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(has_golden_gradients,),
    subtle=True,
)
def golden_gradients(subject: Subject, problem: Problem) -> Finding:
    """A random output gradient, against the golden backward pass in float64."""
    inputs = with_full_rows(subject, problem, whole=True)
    return drawn_gradients_match(subject, problem, inputs)


@clause(
    "gradients.options",
    sentence=(
        "The gradients are those of the specified attention whatever is given together: options, "
        "masks, sizes, places in memory and what is returned."
    ),
    source="flash-attention: softcap and window in the backward pass; numerics.options",
    space=EVERY_OPTION.replace(
        values=("normal",), edges="combinations", purpose="gradients", share=0.1
    ),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(has_golden_gradients,),
    subtle=True,
)
def golden_options(subject: Subject, problem: Problem) -> Finding:
    """Combinations of all declared options under which each query has a key."""
    return unless_refused_alone(
        subject, problem, lambda placed: _gradients_and_answer(subject, placed)
    )


def _gradients_and_answer(subject: Subject, problem: Problem) -> Finding:
    inputs = with_full_rows(subject, problem, whole=True)
    if cannot_be_judged(subject, inputs):  # NaN of a row without keys is in every gradient
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    gradients = promised_gradients(subject, subject.gradients.of(inputs, upstream))
    finding = matches_golden_gradients(subject, inputs, upstream, gradients)
    wording = "recorded, the answer is another"
    answer_finding = matches_golden(subject, inputs, wording, answer=gradients.output)
    return Finding(
        binding=finding.binding,
        margin=finding.margin,
        violation=finding.violation or answer_finding.violation,
    )


@clause(
    "gradients.bias",
    sentence=(
        "An additive mask that requires a gradient, alone or beside the inputs, gets that of the "
        "specified attention, added up over the pairs that share one of its elements; it gets one "
        "where grad_bias is declared."
    ),
    source="learned relative biases; pytorch#119410: no gradient of attn_mask in fused kernels",
    space=Space(
        mask="always",
        causal="maybe",
        forms=("bias",),
        finite_bias="always",
        extras="maybe",
        values=LIVELY,
        patterns=("dense", "full", "random"),
        least=(("key_length", 3),),
        share=0.25,
        kinds=("core",),
    ),
    needs_golden=True,
    counterfactual="a gradient of half the size",
    applies=(has_golden_gradients,),
    subtle=True,
)
def bias_gradient(subject: Subject, problem: Problem) -> Finding:
    """The gradient of an additive mask, with those of the inputs or alone, where it exists."""
    inputs = with_full_rows(subject, problem)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    gradients = subject.gradients.pull(subject.gradients.tape(inputs, bias=True), upstream)
    if "bias" in gradients.missing and "grad_bias" not in subject.declaration.features:
        reason = "no gradient reaches an additive mask, and none is promised"
        return Finding(inapplicable=reason)
    if problem.seed % 2:
        alone = subject.gradients.tape(inputs, names=(), bias=True)
        gradients = subject.gradients.pull(alone, upstream)
    bias_only = gradients.without(gradients.by_name.keys() - {"bias"})
    finding = matches_golden_gradients(subject, inputs, upstream, bias_only)
    moved = inputs.geometry.key_length > 1 and bool(bias_only.by_name["bias"].any())
    return finding.only_if(moved)


@clause(
    "gradients.masked-zero",
    sentence=(
        "Keys and values get a gradient of exactly zero from queries that may not attend them, and "
        "finite values in them change no other gradient."
    ),
    source="pytorch#41508: gradients through a mask",
    space=Space(
        mask="always",
        values=LIVELY,
        patterns=HIDING,
        least=(("key_length", 3), ("query_length", 2)),
        share=0.2,
    ),
    counterfactual="keys that some query may not attend",
    applies=(records_gradients,),
)
def masked_zero(subject: Subject, problem: Problem) -> Finding:
    """Only rows that do not attend some keys get an output gradient; once these keys hold junk."""
    inputs = with_full_rows(subject, problem)
    hidden = _hidden_keys(subject, problem, inputs)
    if not bool(hidden.any()) and inputs.keep is not None and inputs.absent is None:
        inputs = inputs.replace(keep=_all_but_the_last(inputs.keep), generic=False)
        hidden = _hidden_keys(subject, problem, inputs)
    rows = rows_apart(subject, inputs, hidden)
    upstream = output_gradient(subject, problem, inputs, rows)
    if not bool(hidden.any()) or not bool(upstream.any()) or cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    clean = subject.gradients.of(inputs, upstream)
    junked = with_junk_to_differentiate(subject, problem, inputs, hidden, upstream)
    dirty = subject.gradients.of(junked, upstream)
    where = hidden[:, None, :].expand(-1, inputs.geometry.num_kv_heads, -1)
    for gradients in (clean, dirty):
        wording = "the gradient of {} is not zero where no query that counts may attend it"
        broken = exactly_zero(gradients, keys_of(inputs), where, inputs, wording)
        if broken is not None:
            return Finding(violation=broken)
    run = GradientRun(inputs=inputs, upstream=upstream, gradients=clean)
    wording = "junk in keys that no query that counts may attend changes the gradient of {}"
    return same_gradients(subject, run, dirty, wording)


def _all_but_the_last(keep: Tensor) -> Tensor:
    return torch.ones_like(keep) & (torch.arange(keep.shape[-1]) < keep.shape[-1] - 1)


def _hidden_keys(subject: Subject, problem: Problem, inputs: Inputs) -> Tensor:
    """Keys of each item hidden from one of its rows, never the row's own key: bool ``[B, Lk]``.

    The row is drawn among all rows with hidden keys.
    """
    point = subject.declaration.semantics
    reached = inputs.reached(point)
    barred = ~(reached if inputs.is_layer else reached.any(dim=1))
    if inputs.mode == "self":
        own = inputs.own_rows(point)
        barred = barred & ~(own if inputs.is_layer else own[:, 0])
    generator = generator_for(problem, 35)
    weights = torch.rand(barred.shape[:2], generator=generator) + barred.any(dim=-1)
    return barred[torch.arange(barred.shape[0]), weights.argmax(dim=-1)]


def keys_of(inputs: Inputs) -> tuple[str, ...]:
    """The names of the inputs that keys and values are made of."""
    return (
        INPUT_NAMES[inputs.mode][-2:]
        if inputs.mode == "separate"
        else (INPUT_NAMES[inputs.mode][-1],)
    )


def rows_are_finite(candidate: Candidate) -> str:
    """Why rows without keys need not be finite, or ""."""
    rules = candidate.declaration.empty_rules
    if rules & set(FINITE_RULES):
        return ""
    if "any" in rules:
        return "it promises nothing about rows without keys"
    return "its rows without keys are NaN"


@clause(
    "gradients.empty-row-finite",
    sentence=(
        "A query without any key leaves every gradient finite; where it answers zeros, it gives "
        "nothing to any key, value or query."
    ),
    source="pytorch#41508, #55270: NaN gradients from rows of nothing but minus infinity",
    space=Space(
        mask="always",
        causal="maybe",
        patterns=("empty-rows", "full-and-empty"),
        values=LIVELY,
        # Short heads that are normalised may overflow on the way back.
        preferred=(("head_size", 4),),
        share=0.2,
    ),
    counterfactual="a query without any key",
    applies=(records_gradients, rows_are_finite),
)
def empty_row_finite(subject: Subject, problem: Problem) -> Finding:
    """Rows without keys get an output gradient like the others."""
    return gradients_with_empty_rows(subject, problem)


def gradients_with_empty_rows(subject: Subject, problem: Problem) -> Finding:
    """Gradients through every row, with or without keys: finite, and golden under rule "zeros"."""
    inputs = inputs_for_gradients(subject, problem)
    empty = _empty_rows(subject, inputs)
    rule = subject.oracle.empty_rule(inputs)
    # What is only finite or not may be large: hidden keys may be zeros, which a norm divides.
    overflows = subject.dtype == "float16" or rule == "zeros"
    short = overflows and has_short_heads(subject, inputs)
    if rule not in FINITE_RULES or not bool(empty.any()) or short:
        return Finding(binding=False)
    generator = generator_for(problem, 32)
    drawn = torch.randn(inputs.output_shape, generator=generator)
    upstream = output_gradient(subject, problem, inputs)
    upstream = torch.where(empty, drawn.to(upstream.dtype), upstream)
    try:
        gradients = promised_gradients(subject, subject.gradients.of(inputs, upstream))
    except CandidateFailure as failure:
        if bool(empty.all()) and failure.violation.kind == "type":
            return Finding()  # an answer of nothing but constants need have no history
        raise
    broken = _first_not_finite(gradients.by_name, inputs)
    if broken is not None:
        return Finding(violation=broken)
    has_golden = subject.candidate.golden_known and not has_golden_gradients(subject.candidate)
    if not has_golden or rule != "zeros":
        return Finding()
    expected = subject.gradients.oracle.answer(inputs, upstream)
    finding = compare_gradients(subject, inputs.replace(generic=False), expected, gradients)
    return dataclasses.replace(finding, binding=True)


def _first_not_finite(gradients: Mapping[str, Tensor], inputs: Inputs) -> Violation | None:
    """The first gradient that is not finite; most are finite, so the common case is quick."""
    if all(bool(torch.isfinite(each).all()) for each in gradients.values()):
        return None
    kept_finite = partial(torch.nan_to_num, nan=0.0, posinf=0.0, neginf=0.0)
    wording = "a query without keys leaves the gradient of {} not finite"
    return first_wrong(gradients, kept_finite, inputs, wording)


def _empty_rows(subject: Subject, inputs: Inputs) -> Tensor:
    """Rows of the answer in which a head has no key, without absent rows."""
    point = subject.declaration.semantics
    empty = ~inputs.allowed(point).any(dim=-1)
    if inputs.absent is not None:
        empty = empty & ~inputs.absent
    return inputs.answer_rows(empty, point)


@clause(
    "gradients.causal",
    sentence="No gradient flows from a query's answer to keys and values that come later.",
    source=f"{BACKWARD}; flash-attention#1095: causality in the backward pass",
    space=Space(
        causal="always",
        extras="maybe",
        values=LIVELY,
        least=(("query_length", 2), ("key_length", 2)),
        share=0.2,
    ),
    counterfactual="a later key, which gets a gradient without causality",
    applies=(records_gradients,),
)
def causal(subject: Subject, problem: Problem) -> Finding:
    """Give one row an output gradient: keys hidden from that row must get a gradient of zero."""
    inputs = inputs_for_gradients(subject, problem)
    sizes, point = inputs.geometry, subject.declaration.semantics
    reached, empty = inputs.reached(point), ~inputs.allowed(point).any(dim=-1)
    full = ~inputs.answer_rows(empty, point).squeeze(-1)
    barred = (~reached).any(dim=-1).flatten(0, -2).any(dim=0) & full.flatten(0, -2).all(dim=0)
    barred = barred.nonzero().flatten()
    unsafe = subject.oracle.empty_rule(inputs) not in FINITE_RULES
    if not barred.numel() or (unsafe and has_empty_rows(subject, inputs)):
        return Finding(binding=False)
    chosen = torch.randint(barred.numel(), (1,), generator=generator_for(problem, 33))
    row = int(barred[chosen])
    rows = (torch.arange(sizes.query_length) == row).unsqueeze(-1)
    upstream = output_gradient(subject, problem, inputs, rows)
    if not bool(upstream.any()) or has_short_heads(subject, inputs):
        return Finding(binding=False)
    of_row = reached[..., row : row + 1, :]
    if inputs.is_layer:
        where = ~of_row
    else:
        where = ~by_kv_head(of_row, read_heads(subject, inputs), sizes.num_kv_heads)
    if inputs.mode == "self":
        own = inputs.own_rows(point)[..., row : row + 1, :]
        where = where & ~(own if inputs.is_layer else own[:, :1, 0])
    gradients = subject.gradients.of(inputs, upstream)
    wording = f"the answer to query {row} gives a gradient to a later {{}}"
    if not all(bool(one.isfinite().all()) for one in gradients.by_name.values()):
        nothing = subject.gradients.of(inputs, torch.zeros_like(upstream)).by_name.values()
        if not all(bool(one.isfinite().all()) for one in nothing):  # whichever answer counts
            where_empty = ", where queries have no keys" if bool(empty.any()) else ""
            wording = f"with no gradient of any answer a later {{}} gets one{where_empty}"
    broken = exactly_zero(gradients, keys_of(inputs), where, inputs, wording)
    return Finding(violation=broken)
