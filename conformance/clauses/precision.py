"""numerics.scale-error, .typical-error, .lifted-logits, .near-ties, .overflow-half, .subnormal."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from ..base.results import Violation
from ..declare.candidate import Candidate
from ..problems.inputs import Inputs
from ..problems.materialise import has_generic_weights
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model
from ..tolerance.fit import Fit
from ..tolerance.model import FEWEST_ROWS, NARROWEST
from ..tolerance.statistical import has_statistical_bound
from .judging import finite_limit, logits_grow, matches_golden, measure, measures_golden
from .numerics import HEADROOM, largest_product, multiplied
from .registry import Finding, clause
from .subject import Subject

NUMERICS = "docs/tolerance.md; Higham & Mary 2019"
# An example counts if a scale that is off by this much would be wrong.
OTHER_SCALE_ERROR = 0.1
# Errors average out over many elements. A scale that is a power of four multiplies exactly.
MANY = (
    ("query_length", 64),
    ("key_length", 17),
    ("head_size", 16),
    ("value_head_size", NARROWEST),
    ("query_size", 16),
    ("key_size", 16),
    ("value_size", 16),
    ("output_size", NARROWEST),
)
AVERAGED = Space(
    values=("normal", "plain-projections", "decisive"),
    least=(("query_length", FEWEST_ROWS), ("key_length", 2)),
    preferred=MANY,
    share=0.25,
)
# Where a row of the answer is a head's, and where it is the layer's.
WIDE = {
    "core": Space(least=(("value_head_size", NARROWEST),)),
    "layer": Space(least=(("output_size", NARROWEST),)),
}
NEARLY_TIED = Space(
    values=("nearly-tied", "small-near-ties"),
    least=(("key_length", 2),),
    preferred=(("key_length", 5), ("head_size", 16)),
    share=0.25,
)


# What is added to every channel of queries and keys: with heads of 256, whose scale is exact and so
# leaves few roundings that would hide others, all logits grow by 144 and vary by three.
LIFT = 3.0
# A cap of this multiple of the logits bends them, but leaves them apart.
CAPPED = 1.25
LIFTED = Space(
    kinds=("core",),
    values=("normal",),
    least=(("query_length", FEWEST_ROWS), ("key_length", 2)),
    preferred=(
        ("query_length", 64),
        ("key_length", 129),
        ("head_size", 256),
        ("value_head_size", NARROWEST),
    ),
    share=0.1,
)
WIDER = "wider formats show it in every answer"


def _independent(candidate: Candidate) -> str:
    """Why errors of a candidate cannot be taken for independent, or ""."""
    if candidate.declaration.precision:
        return f"at the precision {candidate.declaration.precision} errors may not be independent"
    if not has_generic_weights(candidate):
        return "it brings weights that are alike: its errors may not be independent"
    if not has_statistical_bound(candidate.declaration.semantics):
        return "at its declared semantics errors may not be independent"
    return WIDE[candidate.kind].not_applicable(candidate)


@clause(
    "numerics.scale-error",
    sentence=(
        "The relative error of the logit scale, fitted to many independent elements, is not larger "
        "than the declared precision explains."
    ),
    source=f"{NUMERICS}; Vaswani et al. 2017, equation 1",
    space=AVERAGED,
    needs_golden=True,
    counterfactual="a scale ten percent larger",
    applies=(_independent,),
    subtle=True,
)
def scale_error(subject: Subject, problem: Problem) -> Finding:
    """Fit one common scale error: a thousandth of an element's rounding shows if all share it."""
    fitted, broken = _fitted(subject, problem)
    if fitted is None:
        return Finding(binding=False, violation=broken)
    margin = abs(fitted.scale_error) / fitted.scale_allowed
    violation = None
    if fitted.blames_scale:
        message = (
            f"the logit scale has a relative error of {fitted.scale_error:+.3g}, fitted to "
            f"{fitted.counted} elements (allowed {fitted.scale_allowed:.3g})"
        )
        measured = {"scale_error": fitted.scale_error, "allowed": fitted.scale_allowed}
        violation = Violation(
            kind="value", message=message, expected=0.0, got=fitted.scale_error, measured=measured
        )
    # Errors beyond the bound blur the fit and may feign a scale: other clauses judge them.
    binding = fitted.scale_allowed < OTHER_SCALE_ERROR or fitted.unexplained > 1.0
    return Finding(
        binding=binding, margin=margin if violation else min(margin, 1.0), violation=violation
    )


@clause(
    "numerics.typical-error",
    sentence=(
        "On independent inputs, the root mean square of all errors stays within that of the "
        "roundings which the declared precision makes."
    ),
    source=NUMERICS,
    space=AVERAGED,
    needs_golden=True,
    applies=(_independent,),
    subtle=True,
)
def typical_error(subject: Subject, problem: Problem) -> Finding:
    """Each error in units of its own typical size, without the part explained by a wrong scale."""
    fitted, broken = _fitted(subject, problem)
    if fitted is None:
        return Finding(binding=False, violation=broken)
    violation = None
    if fitted.unexplained > 1.0:
        message = (
            f"the errors are {fitted.unexplained:.3g} times as large as the declared precision "
            f"explains, over {fitted.counted} elements together"
        )
        violation = Violation(
            kind="value",
            message=message,
            expected=1.0,
            got=fitted.unexplained,
            measured={"rms": fitted.rms, "unexplained": fitted.unexplained},
        )
    return Finding(margin=fitted.unexplained, violation=violation)


def _fitted(subject: Subject, problem: Problem) -> tuple[Fit | None, Violation | None]:
    """The fit of the errors, or (None, violation) where the answer is not finite."""
    inputs = subject.inputs(problem)
    yardstick, answer = subject.yardstick(inputs), subject.answer(inputs)
    comparison = measure(yardstick, answer, "the answer to independent inputs is wrong")
    if comparison.kind == "finite":
        return None, comparison.violation
    return yardstick.fit(answer), None


def _keeps_scores(candidate: Candidate) -> str:
    """Why a candidate may round its scores as coarsely as the mistakes in question, or ""."""
    declared = candidate.declaration
    if declared.scores != "fused":
        return "it declares stored scores, whose rounding hides that of a log-sum-exp or of tanh"
    if declared.position == "rotary":
        return "its positions turn what all tokens have in common"
    halves = {"float16", "bfloat16"} & set(declared.dtypes)
    return logits_grow(candidate) if halves else WIDER


@clause(
    "numerics.lifted-logits",
    sentence=(
        "Where scores stay in the accumulator, logits that are all far from zero cost no accuracy: "
        "what a row has in common is rounded nowhere in half precision."
    ),
    source=f"{NUMERICS}; flash-decoding: log-sum-exps of parts in float32; PTX tanh.approx: 2^-11",
    space=LIFTED,
    needs_golden=True,
    counterfactual="log-sum-exps of two halves of the keys, rounded to the dtype",
    applies=(_keeps_scores, _independent),
    subtle=True,
)
def lifted_logits(subject: Subject, problem: Problem) -> Finding:
    """Add one number to all channels of queries and keys; in turn with and without a softcap."""
    if subject.dtype not in ("float16", "bfloat16"):
        return Finding(inapplicable=WIDER)
    if subject.declaration.accumulate not in (None, "float32", "float64"):
        return Finding(inapplicable="it declares to add up in half precision")
    inputs = _lifted(subject, problem)
    yardstick, answer = subject.yardstick(inputs), subject.answer(inputs)
    comparison = measure(yardstick, answer, "the answer to lifted logits is wrong")
    if comparison.kind == "finite":
        return Finding(violation=comparison.violation)
    fitted = yardstick.sharp_fit(answer)
    coarse = yardstick.sharp_fit(_coarsely_merged(subject, inputs))
    if fitted is None or coarse is None:
        return Finding(binding=False)
    (left, allowed), binding = fitted, coarse[0].unexplained > coarse[1]
    if left.unexplained <= allowed:
        return Finding(binding=binding, margin=left.unexplained / allowed)
    message = (
        f"where all logits are lifted, the errors are {left.unexplained:.3g} times as large as "
        f"roundings explain (allowed {allowed:.3g}), over {left.counted} elements together: is a "
        "log-sum-exp kept in half precision, or a tanh approximated?"
    )
    measured = {"rms": left.rms, "unexplained": left.unexplained, "allowed": allowed}
    violation = Violation(
        kind="value", message=message, expected=allowed, got=left.unexplained, measured=measured
    )
    return Finding(binding=binding, margin=left.unexplained / allowed, violation=violation)


def _lifted(subject: Subject, problem: Problem) -> Inputs:
    """Queries and keys with a common part: up or down in turn, and capped where offered."""
    inputs = subject.inputs(problem)
    sign = -1.0 if problem.seed // 2 % 2 else 1.0
    lifted = inputs.with_tokens(query=inputs.query + LIFT, key=inputs.key + sign * LIFT)
    if "softcap" in subject.declaration.features and problem.seed % 2:
        common = LIFT**2 * inputs.geometry.head_size * abs(subject.golden(lifted).core.scale)
        lifted = lifted.replace(softcap=CAPPED * common)
    # Values stay independent, and what is in common is a number of the accumulator.
    return lifted.replace(generic=True)


def _coarsely_merged(subject: Subject, inputs: Inputs) -> Tensor:
    """The answer merged from two halves of the keys, with log-sum-exps rounded to the dtype."""
    core = subject.golden(inputs).core
    middle = core.logits.shape[-1] // 2
    outputs, sizes = [], []
    for keys in (slice(0, middle), slice(middle, None)):
        logits = core.logits[..., keys]
        outputs.append(logits.softmax(dim=-1) @ core.value[..., keys, :])
        sizes.append(logits.logsumexp(dim=-1, keepdim=True).to(inputs.query.dtype).double())
    share = (sizes[0] - sizes[1]).sigmoid()
    return share * outputs[0] + (1.0 - share) * outputs[1]


@clause(
    "numerics.near-ties",
    sentence="Logits that nearly tie are told apart as well as the declared precision can.",
    source="docs/tolerance.md; scores stored in a coarser format than declared",
    space=NEARLY_TIED,
    needs_golden=True,
    counterfactual="equal weights, as if the logits tied",
    subtle=True,
)
def near_ties(subject: Subject, problem: Problem) -> Finding:
    """Points of a lattice near one corner: their products are exact in every dtype."""
    inputs = _within_headroom(subject, subject.inputs(problem))
    wording = "logits that nearly tie are not told apart"
    even = inputs.replace(scale=0.0)
    return measures_golden(subject, inputs, wording, counterfactual=even, signal=False)


def _within_headroom(subject: Subject, inputs: Inputs) -> Inputs:
    """Tokens divided by a power of two, which is exact, until no unscaled product can overflow."""
    core = subject.golden(inputs).core
    room = HEADROOM * finite_limit(subject)
    excess = largest_product(core) / room
    if excess <= 1.0:
        return inputs
    if inputs.mode == "self":
        return inputs.with_tokens(key=inputs.key * 2.0 ** -math.ceil(math.log2(excess) / 2.0))
    return inputs.with_tokens(query=inputs.query * 2.0 ** -math.ceil(math.log2(excess)))


# The largest products over the largest finite number, before the scale. With heads of 16 channels
# or more, whose scale is at most a quarter, they are within the range after it.
PAST: Final = 2.0
# The size of logits where a scale may be given: that scale is a normal number of float16 still.
MODEST: Final = 16.0
# Powers of two by which queries become tiny and keys huge; where the size of a query is between one
# and a few, no scale in use makes it subnormal, and no key leaves the headroom.
TINY: Final = {"float32": -110, "bfloat16": -110, "float16": -9}
# Tiny values: their weighted sums are normal numbers still, and so is what a projection makes.
NORMAL_VALUES: Final = 2.0**4
SUBNORMAL: Final = 2.0**-3
FLOAT16_ONLY: Final = "products of ordinary numbers overflow float16 alone"


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
    """Enlarge queries and keys alike; in every other example a given scale makes up for it.

    Where scores are not stored, the logits behind the scale overflow in every other example, too.
    """
    if subject.dtype != "float16":
        return Finding(inapplicable=FLOAT16_ONLY)
    if finite_limit(subject) < _limit("float32") and subject.declaration.accumulate is not None:
        reason = "it declares to add up in float16, in which such products overflow"
        return Finding(inapplicable=reason)
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
        return Finding(binding=False)  # the declaration stores scores in float16
    wording = "products past 65504 give a wrong answer"
    judged = ~subject.golden(inputs).empty_rows  # rows past the range of float16 count, too
    return matches_golden(subject, inputs, wording, judged=judged, signal=False)


def _limit(dtype: str) -> float:
    return float(torch.finfo(getattr(torch, dtype)).max)


def _past_largest(subject: Subject, inputs: Inputs, *, scaled: bool) -> Inputs:
    """Tokens enlarged until the largest product is past float16's largest number.

    With ``scaled`` the largest logit is past it, too.
    """
    core = subject.golden(inputs).core
    # The largest, not the most negative: minus infinity is a weight of zero, as it should be.
    products = (core.query @ core.key.transpose(-1, -2)).amax()
    target = PAST * _limit(subject.dtype) / (min(abs(core.scale), 1.0) if scaled else 1.0)
    factor = math.sqrt(target / max(float(products), 1.0))
    key = multiplied(inputs.key, factor)
    if inputs.mode == "self":
        return inputs.with_tokens(key=key)
    # With one memory for keys and values the values grow, too, and keep their headroom.
    return inputs.with_tokens(query=multiplied(inputs.query, factor), key=key)


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
    """Tiny values, subnormal values, tiny queries against huge keys, and subnormal queries."""
    if subject.dtype == "float64":
        reason = "the golden answer is in float64, and ends where it does"
        return Finding(inapplicable=reason)
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
    value = multiplied(inputs.value, factor)
    return inputs.with_tokens(value=value) if inputs.mode == "separate" else inputs


def _tiny_queries(subject: Subject, inputs: Inputs) -> Finding:
    if inputs.mode != "separate":
        return Finding(binding=False)
    factor = 2.0 ** TINY[subject.dtype]
    query = inputs.query.double()
    apart = torch.where(query < 0.0, query - 1.0, query + 1.0)
    tiny = inputs.with_tokens(
        query=(apart * factor).to(inputs.query.dtype), key=multiplied(inputs.key, 1.0 / factor)
    )
    even = tiny.replace(scale=0.0)
    wording = "tiny queries that meet huge keys give a wrong answer"
    return matches_golden(subject, tiny, wording, counterfactual=even, signal=False)


def _subnormal_queries(subject: Subject, inputs: Inputs) -> Finding:
    factor = SUBNORMAL * _smallest(subject.dtype)
    if inputs.mode == "self":
        tiny = inputs.with_tokens(key=multiplied(inputs.key, factor))
    else:
        tiny = inputs.with_tokens(query=multiplied(inputs.query, factor))
    return matches_golden(subject, tiny, "subnormal queries give a wrong answer", signal=False)


def _smallest(dtype: str) -> float:
    return float(torch.finfo(getattr(torch, dtype)).smallest_normal)


WAYS: Final = (_tiny_values, _subnormal_values, _tiny_queries, _subnormal_queries)
