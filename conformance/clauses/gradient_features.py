"""gradients.cache, .sinks, .learned, .weights, .lse, .dropout, .any-length: with each feature."""

from __future__ import annotations

import dataclasses
from typing import Final

import torch
from torch import Tensor

from ..calls.devices import forked_random, seed_random
from ..declare.candidate import Candidate
from ..oracle.comparison import moves
from ..oracle.gradient_oracle import GradientAnswer
from ..problems.caching import first_keys, query_rows
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import LIVELY, normal
from ..problems.space import EVERY_OPTION, OPTIONS, Space, admits_lengths, can_cross
from .caches import can_cache, last_queries, with_cache
from .judging_gradients import (
    cannot_be_judged,
    compare_gradients,
    drawn_gradients_match,
    has_empty_rows,
    has_golden_gradients,
    judged_rows,
    output_gradient,
    promised_gradients,
    with_full_rows,
)
from .learned import takes_learned
from .log_sum_exp import offers_lse
from .registry import Finding, clause, requires
from .shape import offers_weights
from .sinks import offers_sinks, with_sinks
from .subject import Subject

# Streams of a problem's generator: the gradient of returned weights, orthogonal values.
OF_WEIGHTS: Final = 36
VALUES: Final = 37
# Kept weights are divided by one minus the probability: by a power of two, which is exact.
PROBABILITIES: Final = (0.5, 0.75)
# The most queries of a problem with dropout.
MOST_ROWS: Final = 8


_is_core = requires(lambda c: c.kind == "core", "no bound is derived behind projections")

_caches_what_it_takes = requires(
    lambda c: c.declaration.rotary_tables is None,
    "its cached keys are turned beforehand",
)


@clause(
    "gradients.cache",
    sentence=(
        "With a cache the gradients of query, of new and of cached keys and values are those of "
        "the specified attention over all of them."
    ),
    source="transformers: prefix tuning learns past_key_values; executorch#2010: the diagonal",
    space=EVERY_OPTION.replace(
        least=(("key_length", 3), ("query_length", 2)), share=0.3, kinds=("core",)
    ),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(_is_core, _caches_what_it_takes, can_cache, has_golden_gradients),
    subtle=True,
)
def cache(subject: Subject, problem: Problem) -> Finding:
    """Some of the keys cached, by the seed; with a causal rule no more queries than new keys."""
    inputs = with_cache(subject, problem.replace(sinks=False))
    if inputs.causal:
        inputs = last_queries(subject, inputs)
    return drawn_gradients_match(subject, problem, inputs)


@clause(
    "gradients.sinks",
    sentence=(
        "Beside sinks the gradients of query, key and value are those of weights that leave the "
        "sinks their share, and a sink that gets a gradient gets that of its logit."
    ),
    source="OpenAI 2025 (gpt-oss model card): learned sinks; flash-attention: backward of s_aux",
    space=EVERY_OPTION.replace(
        values=LIVELY, least=(("key_length", 2),), share=0.2, kinds=("core",)
    ),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(_is_core, offers_sinks, has_golden_gradients),
    subtle=True,
)
def sinks(subject: Subject, problem: Problem) -> Finding:
    """Sinks of the size of the logits, with all other options."""
    inputs = with_sinks(subject, problem.replace(past=0))
    if has_empty_rows(subject, inputs):
        inputs = with_sinks(
            subject, problem.replace(past=0, window=None, causal=subject.declaration.always_causal)
        )
    return drawn_gradients_match(subject, problem, inputs)


@clause(
    "gradients.learned",
    sentence=(
        "The gradient of a norm weight, a temperature or a slope is a sum over all that it "
        "multiplies or that it meets: items, tokens and heads."
    ),
    source="flash-attention#1977: slopes without gradients; unsloth#4533: norm weights without",
    space=EVERY_OPTION.replace(
        values=LIVELY,
        least=(("key_length", 2), ("query_length", 2)),
        preferred=(("batch", 2), ("num_heads", 2)),
        share=0.3,
        kinds=("core",),
    ),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(_is_core, takes_learned, has_golden_gradients),
    subtle=True,
)
def learned(subject: Subject, problem: Problem) -> Finding:
    """All gradients, with all other options but a cache."""
    return drawn_gradients_match(
        subject, problem, with_full_rows(subject, problem.replace(past=0), whole=True)
    )


@clause(
    "gradients.weights",
    sentence=(
        "Where weights are returned with the answer, gradients flow back through either of them "
        "and through both; weights that carry none are constants."
    ),
    source="flash-attention#1817: no gradient through a further output, silently",
    space=EVERY_OPTION.replace(
        values=("normal",),
        least=(("key_length", 2), ("query_length", 2)),
        share=0.3,
        kinds=("core",),
    ),
    needs_golden=True,
    counterfactual="gradients of the other output alone, or of half the size",
    applies=(_is_core, offers_weights, has_golden_gradients),
    subtle=True,
)
def weights(subject: Subject, problem: Problem) -> Finding:
    """An output gradient of the weights alone, of both, or of the answer with unused weights."""
    inputs = with_full_rows(subject, problem, whole=True)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    inputs = inputs.replace(return_weights=True, generic=False)
    drawn = normal(inputs.score_shape, generator_for(problem, OF_WEIGHTS))
    return _of_both(subject, problem, inputs, drawn, "answer_with_weights")


def _of_both(
    subject: Subject, problem: Problem, inputs: Inputs, drawn: Tensor, oracle: str
) -> Finding:
    """An output gradient of what is returned beside the answer alone, of both, or of the answer.

    ``oracle`` names the method of the golden gradients; ``drawn`` is the gradient of the second.
    """
    mode = ("beside", "both", "answer")[problem.seed % 3]
    upstream = output_gradient(subject, problem, inputs)
    judged = judged_rows(subject, inputs).expand(*inputs.score_shape[:3], 1)
    judged = judged if drawn.dim() == judged.dim() else judged.squeeze(-1)
    wide = torch.promote_types(upstream.dtype, torch.float32)
    beside = drawn.to(wide if inputs.return_lse else upstream.dtype).masked_fill(~judged, 0.0)
    taped = subject.gradients.tape(inputs)
    returned = taped.returned_beside
    if mode != "answer" and (returned is None or not returned.requires_grad):
        return Finding(inapplicable="what is returned beside the answer carries no gradient")
    nothing, none = torch.zeros_like(upstream), torch.zeros_like(beside)
    if mode == "beside":
        upstreams, gradients = (nothing, beside), taped.pull(None, beside=beside)
    elif mode == "answer":
        upstreams, gradients = (upstream, none), taped.pull(upstream)
    else:
        upstreams, gradients = (upstream, beside), taped.pull(upstream, beside=beside)
    answer = getattr(subject.gradients.oracle, oracle)
    expected = answer(inputs, *upstreams)
    other = answer(inputs, nothing if mode == "both" else upstreams[0] / 2.0, upstreams[1] / 2.0)
    finding = compare_gradients(subject, inputs, expected, promised_gradients(subject, gradients))
    return dataclasses.replace(finding, binding=_differs(expected, other))


@clause(
    "gradients.lse",
    sentence=(
        "Where log-sum-exps are returned with the answer, gradients flow back through either of "
        "them and through both; log-sum-exps that carry none are constants."
    ),
    source="by definition: the derivative by a logit is its weight; ring attention merges by them",
    space=EVERY_OPTION.replace(
        values=("normal",),
        least=(("key_length", 2), ("query_length", 2)),
        share=0.3,
        kinds=("core",),
    ),
    needs_golden=True,
    counterfactual="gradients of the other output alone, or of half the size",
    applies=(_is_core, offers_lse, has_golden_gradients),
    subtle=True,
)
def log_sum_exps(subject: Subject, problem: Problem) -> Finding:
    """An output gradient of the log-sum-exps alone, of both, or of the answer with unused ones."""
    inputs = with_full_rows(subject, problem.replace(past=0), whole=True)
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    inputs = inputs.replace(return_lse=subject.declaration.lse_shape or "", generic=False)
    drawn = normal(inputs.score_shape[:3], generator_for(problem, OF_WEIGHTS))
    return _of_both(subject, problem, inputs, drawn, "answer_with_lse")


def _drops_plainly(candidate: Candidate) -> str:
    """Why the weights that were kept cannot be read from an answer, or ""."""
    declared, point = candidate.declaration, candidate.declaration.semantics
    if "dropout" not in declared.features:
        return "no dropout keyword is declared"
    if point.qk_norm_over != "head":
        return "its heads are normalised together"
    placed = declared.position is not None or point.alibi or point.rotary != "none"
    if placed or point.score_mod is not None:
        return "its scores depend on the place of a query"
    return ""


@clause(
    "gradients.dropout",
    sentence=(
        "The weights that the answer has dropped, and no others, are dropped on the way back, and "
        "those that were kept grow as they have grown in the answer."
    ),
    source="pytorch#197563: another mask on the way back; flash-attention#612",
    space=OPTIONS.replace(
        values=("nearly-uniform", "normal"),
        least=(("key_length", 3), ("query_length", 2), ("value_head_size", 8)),
        preferred=(("head_size", 8), ("value_head_size", 8), ("key_length", 8)),
        share=0.2,
        kinds=("core",),
    ),
    needs_golden=True,
    counterfactual="gradients without dropout",
    applies=(_is_core, _drops_plainly, has_golden_gradients),
    subtle=True,
)
def dropout(subject: Subject, problem: Problem) -> Finding:
    """Read each kept weight off the answer, which is linear in it: the values are orthogonal."""
    inputs = _with_few_keys(subject, problem)
    if inputs is None or cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    chance = PROBABILITIES[problem.seed % len(PROBABILITIES)]
    upstream = output_gradient(subject, problem, inputs)
    with forked_random(subject.device):
        seed_random(subject.device, problem.seed)
        taped = subject.gradients.tape(inputs.replace(dropout=chance))
        gradients = taped.pull(upstream)
    kept, reason = _kept(subject, inputs, taped.answer.output, 1.0 / (1.0 - chance))
    if kept is None:
        return Finding(inapplicable=reason)
    oracle = subject.gradients.oracle
    expected = oracle.dropped_gradients(inputs, upstream, kept)
    finding = compare_gradients(subject, inputs, expected, gradients)
    apart = _differs(expected, oracle.answer(inputs, upstream))
    return finding.only_if(apart)


def _differs(expected: GradientAnswer, other: GradientAnswer) -> bool:
    return expected.representable and any(
        moves(gradient.value, other.gradients[name].value, gradient.worst)
        for name, gradient in expected.gradients.items()
    )


def _with_few_keys(subject: Subject, problem: Problem) -> Inputs | None:
    """The inputs of a problem with no more keys than channels and with orthogonal values.

    None where the declaration leaves no such length.
    """
    inputs = with_full_rows(subject, problem)
    sizes = inputs.geometry
    count = min(sizes.key_length, sizes.value_head_size)
    rows = min(sizes.query_length, MOST_ROWS)
    if can_cross(subject.candidate) and not inputs.causal and inputs.window is None:
        inputs = first_keys(query_rows(inputs, 0, rows), count)
    geometry = inputs.geometry
    if geometry.key_length > geometry.value_head_size:
        return None
    if geometry != sizes and not admits_lengths(subject.candidate, geometry):
        return None
    drawn = torch.randn(
        (*inputs.value.shape[:2], sizes.value_head_size, sizes.value_head_size),
        generator=generator_for(problem, VALUES),
        dtype=torch.float64,
    )
    rows_of_unit = torch.linalg.qr(drawn).Q[..., : geometry.key_length, :]
    return inputs.replace(value=rows_of_unit.to(inputs.value.dtype), generic=False)


def _kept(
    subject: Subject, inputs: Inputs, answer: Tensor, grown: float
) -> tuple[Tensor | None, str]:
    """The factor of each weight, ``[B, H, Lq, Lk]``: 0 or ``grown``.

    None where some weight is too small to tell, or, with a reason, where a weight has another
    factor (the clauses about answers judge that).
    """
    expected = subject.golden(inputs)
    values = expected.core.value.double()
    inverse = torch.linalg.pinv(values)
    share = answer.double() @ inverse
    reach = grown * expected.bound.double() @ inverse.abs()
    live = expected.weights > 0.0
    if bool((live & (expected.weights * grown <= 4.0 * reach)).any()):
        return None, ""
    kept = live & (share > expected.weights * grown / 2.0)
    far = (share - kept * expected.weights * grown).abs() > 2.0 * reach
    if bool((far | ~share.isfinite()).any()):
        return None, "its answers with dropout are not those of weights that were kept or dropped"
    return kept * grown, ""


@clause(
    "gradients.any-length",
    sentence="The gradients are right past the edges of large tiles of keys, queries and channels.",
    source="flash-attention#414: dq of a tile's tail; pytorch#162588: long lengths only",
    space=Space(
        mask="maybe",
        causal="maybe",
        values=("normal",),
        patterns=("random", "padding", "left-padding", "dense"),
        share=0.025,
        edges="tiles",
    ),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(has_golden_gradients,),
    subtle=True,
)
def any_length(subject: Subject, problem: Problem) -> Finding:
    """Few queries over many keys, many queries over few keys, and heads of many channels."""
    return drawn_gradients_match(subject, problem, with_full_rows(subject, problem))
