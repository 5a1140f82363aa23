"""gradients.cache, .sinks, .any-length: what flows back to caches and sinks, and at any length."""

from __future__ import annotations

from ..candidate import Candidate
from ..inputs import Inputs
from ..problem import Problem
from ..recipes import LIVELY
from ..registry import Finding, clause
from ..space import Space
from ..subject import Subject
from ._gradients import (
    cannot_be_judged,
    has_empty_rows,
    has_golden_gradients,
    matches_golden_gradients,
    output_gradient,
    promised_gradients,
    with_full_rows,
)
from .caches import can_cache, last_queries, with_cache
from .sinks import offers_sinks, with_sinks


def _is_core(candidate: Candidate) -> str:
    """Why what is handed over is not what the golden's gradients belong to, or ""."""
    return "" if candidate.kind == "core" else "no bound is derived behind projections"


@clause(
    "gradients.cache",
    level="MUST",
    sentence=(
        "With a cache the gradients of query, of new and of cached keys and values are those of "
        "the specified attention over all of them."
    ),
    source="transformers: prefix tuning learns past_key_values; executorch#2010: the diagonal",
    space=Space(
        mask="maybe",
        causal="maybe",
        finite_bias="maybe",
        extras="maybe",
        least=(("key_length", 3), ("query_length", 2)),
        share=0.3,
        kinds=("core",),
    ),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(_is_core, can_cache, has_golden_gradients),
    subtle=True,
)
def cache(subject: Subject, problem: Problem) -> Finding:
    """Some of the keys cached, by the seed; behind a causal rule as many queries as new keys."""
    inputs = with_cache(subject, problem.replace(sinks=False))
    if inputs.causal:
        inputs = last_queries(subject, inputs)
    return _judged(subject, problem, inputs)


@clause(
    "gradients.sinks",
    level="MUST",
    sentence=(
        "Beside sinks the gradients of query, key and value are those of weights that leave the "
        "sinks their share, and a sink that gets a gradient gets that of its logit."
    ),
    source="OpenAI 2025 (gpt-oss model card): learned sinks; flash-attention: backward of s_aux",
    space=Space(
        mask="maybe",
        causal="maybe",
        finite_bias="maybe",
        extras="maybe",
        values=LIVELY,
        least=(("key_length", 2),),
        share=0.2,
        kinds=("core",),
    ),
    needs_golden=True,
    counterfactual="gradients of half the size",
    applies=(_is_core, offers_sinks, has_golden_gradients),
    subtle=True,
)
def sinks(subject: Subject, problem: Problem) -> Finding:
    """Sinks of the size of the logits, beside every other option."""
    inputs = with_sinks(subject, problem.replace(past=0))
    if has_empty_rows(subject, inputs):
        inputs = with_sinks(
            subject, problem.replace(past=0, window=None, causal=subject.declaration.always_causal)
        )
    return _judged(subject, problem, inputs)


@clause(
    "gradients.any-length",
    level="MUST",
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
    """Few queries that see many keys, many queries that see few, and heads of many channels."""
    return _judged(subject, problem, with_full_rows(subject, problem))


def _judged(subject: Subject, problem: Problem, inputs: Inputs) -> Finding:
    """Every gradient of a problem in which each query has a key."""
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    found = promised_gradients(subject, subject.gradients.of(inputs, upstream))
    return matches_golden_gradients(subject, inputs, upstream, found)
