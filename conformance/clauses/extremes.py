"""numerics.overflow-half, .subnormal: numbers at the ends of what a format holds."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model
from ._vocabulary import finite_limit, matches_golden
from .registry import Finding, clause
from .subject import Subject

# So many times the largest finite number are the largest products, before the scale. With heads of
# 16 channels or more, which make the scale a quarter, they are within the range behind it.
PAST: Final = 2.0
# The size of logits where a scale may be given: that scale is a normal number of float16 still.
MODEST: Final = 16.0
# Powers of two by which queries become tiny and keys huge; where the size of a query is between one
# and a few, no scale in use makes it subnormal, and no key leaves the headroom.
TINY: Final = {"float32": -110, "bfloat16": -110, "float16": -9}
# Tiny values: their weighted sums are normal numbers still, and so is what a projection makes.
NORMAL_VALUES: Final = 2.0**4
SUBNORMAL: Final = 2.0**-3
OTHERS_REACH: Final = "products of ordinary numbers overflow float16 alone"


@clause(
    "numerics.overflow-half",
    level="SHOULD",
    sentence=(
        "In float16, products of query and key past 65504 leave the answer finite and right, "
        "unless the candidate declares to add up in float16."
    ),
    source="pytorch#119131, ultralytics#24990: the product overflows before it is scaled",
    space=Space(
        values=("normal", "decisive"),
        least=(("key_length", 2),),
        preferred=(("head_size", 64),),
        share=0.25,
    ),
    needs_golden=True,
    subtle=True,
)
def overflow_half(subject: Subject, problem: Problem) -> Finding:
    """Queries and keys are enlarged alike; every other time a given scale makes up for it.

    Where scores are not stored, logits behind the scale are past it every other time.
    """
    if subject.dtype != "float16":
        return Finding(binding=False, inapplicable=OTHERS_REACH)
    if finite_limit(subject) < _limit("float32") and subject.declaration.accumulate is not None:
        reason = "it declares to add up in float16, in which such products overflow"
        return Finding(binding=False, inapplicable=reason)
    limit, odd = _limit(subject.dtype), bool(problem.seed % 2)
    stored = subject.declaration.scores == "eager"
    inputs = _past_largest(subject, subject.inputs(problem), scaled=not (stored or odd))
    core = subject.golden(inputs).core
    largest = max(float(t.abs().amax()) for t in (core.query, core.key, core.value, core.output))
    past = float((core.query @ core.key.transpose(-1, -2)).amax()) > limit
    if largest > model.HEADROOM * limit or not past:
        return Finding(binding=False)
    if "scale" in subject.declaration.features and odd:
        inputs = inputs.replace(scale=MODEST / (PAST * limit))
    elif stored and float(core.scores.abs().amax()) > limit / 2.0:
        return Finding(binding=False)  # scores are stored in float16, it says
    wording = "products past 65504 give a wrong answer"
    judged = ~subject.golden(inputs).empty_rows  # the others are those that are past
    return matches_golden(subject, inputs, wording, judged=judged, signal=False)


def _limit(dtype: str) -> float:
    return float(torch.finfo(getattr(torch, dtype)).max)


def _past_largest(subject: Subject, inputs: Inputs, *, scaled: bool) -> Inputs:
    """Tokens enlarged until the largest product is past float16's largest number.

    With ``scaled`` the largest logit is, too.
    """
    core = subject.golden(inputs).core
    # The largest, not the most negative: minus infinity is a weight of zero, as it should be.
    products = (core.query @ core.key.transpose(-1, -2)).amax()
    target = PAST * _limit(subject.dtype) / (min(abs(core.scale), 1.0) if scaled else 1.0)
    factor = math.sqrt(target / max(float(products), 1.0))
    key = _times(inputs.key, factor)
    if inputs.mode == "self":
        return inputs.with_tokens(key=key)
    # With one memory for keys and values the values grow, too, and keep their headroom.
    return inputs.with_tokens(query=_times(inputs.query, factor), key=key)


def _times(tensor: Tensor, factor: float) -> Tensor:
    return (tensor.double() * factor).to(tensor.dtype)


@clause(
    "numerics.subnormal",
    sentence=(
        "Tiny and subnormal inputs give the right answer; what underflows may be flushed to zero, "
        "and nothing else."
    ),
    source="torch.set_flush_denormal (pytorch#19652); docs/tolerance.md: the smallest useful size",
    space=Space(values=("plain-projections",), least=(("key_length", 2),), share=0.25),
    needs_golden=True,
    counterfactual="tiny numbers taken for zero",
    subtle=True,
)
def subnormal(subject: Subject, problem: Problem) -> Finding:
    """Tiny values, subnormal ones, tiny queries that meet huge keys, and subnormal queries."""
    if subject.dtype == "float64":
        reason = "the golden answer is in float64, and ends where it does"
        return Finding(binding=False, inapplicable=reason)
    inputs = subject.inputs(problem)
    return WAYS[problem.seed % len(WAYS)](subject, inputs)


def _tiny_values(subject: Subject, inputs: Inputs) -> Finding:
    tiny = _with_values(inputs, NORMAL_VALUES * _smallest(subject.dtype))
    zero = _with_values(inputs, 0.0)
    return matches_golden(
        subject, tiny, "tiny values give a wrong answer", counterfactual=zero, signal=False
    )


def _subnormal_values(subject: Subject, inputs: Inputs) -> Finding:
    tiny = _with_values(inputs, SUBNORMAL * _smallest(subject.dtype))
    return matches_golden(subject, tiny, "subnormal values give a wrong answer", signal=False)


def _with_values(inputs: Inputs, factor: float) -> Inputs:
    value = _times(inputs.value, factor)
    return inputs.with_tokens(value=value) if inputs.mode == "separate" else inputs


def _tiny_queries(subject: Subject, inputs: Inputs) -> Finding:
    if inputs.mode != "separate":
        return Finding(binding=False)
    factor = 2.0 ** TINY[subject.dtype]
    query = inputs.query.double()
    apart = torch.where(query < 0.0, query - 1.0, query + 1.0)
    tiny = inputs.with_tokens(
        query=(apart * factor).to(inputs.query.dtype), key=_times(inputs.key, 1.0 / factor)
    )
    even = tiny.replace(scale=0.0)
    wording = "tiny queries that meet huge keys give a wrong answer"
    return matches_golden(subject, tiny, wording, counterfactual=even, signal=False)


def _subnormal_queries(subject: Subject, inputs: Inputs) -> Finding:
    factor = SUBNORMAL * _smallest(subject.dtype)
    if inputs.mode == "self":
        tiny = inputs.with_tokens(key=_times(inputs.key, factor))
    else:
        tiny = inputs.with_tokens(query=_times(inputs.query, factor))
    return matches_golden(subject, tiny, "subnormal queries give a wrong answer", signal=False)


def _smallest(dtype: str) -> float:
    """The smallest normal number."""
    return float(torch.finfo(getattr(torch, dtype)).smallest_normal)


WAYS: Final = (_tiny_values, _subnormal_values, _tiny_queries, _subnormal_queries)
