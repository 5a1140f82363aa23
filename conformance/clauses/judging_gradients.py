"""What the clauses about gradients are written with: how gradients are made and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._golden import golden
from ..base.results import Violation
from ..calls.differentiating import (
    CACHED_NAMES,
    INPUT_NAMES,
    KEYWORD_LEAVES,
    LEARNED_NAMES,
    Gradients,
)
from ..declare.candidate import Candidate
from ..oracle.comparison import Comparison, compare, moves
from ..oracle.gradient_oracle import GradientAnswer, separate_cache, why_unknown
from ..problems.inputs import Inputs
from ..problems.materialise import generator_for
from ..problems.problem import Problem
from ..problems.recipes import normal
from ..tolerance import Gradient, GradientStatistics, gradient_fit, model
from .registry import Finding
from .subject import SPREAD_CALLS, Subject, nudged

# Streams of a problem's generator: that of the output gradient.
UPSTREAM = 31
HEADS = {
    name: ("batch", "head", axis, "channel")
    for name, axis in (("query", "query"), ("key", "key"), ("value", "key"))
}
TOKENS = {
    name: ("batch", axis, "channel")
    for name, axis in (
        ("query", "query"),
        ("key", "key"),
        ("value", "key"),
        ("context", "key"),
        ("x", "token"),
    )
}
DESCRIPTIONS = {
    **{role: f"the {role} matrix" for role in "qkvo"},
    **{f"{role}_bias": f"the bias of {role}" for role in "qkvo"},
    "bias": "the additive mask",
    "sinks": "the sinks",
    "query_norm_weight": "the norm weight of the queries",
    "key_norm_weight": "the norm weight of the keys",
    "temperature": "the temperatures",
    "alibi_slopes": "the slopes",
    "past_key": "the cached keys",
    "past_value": "the cached values",
}


def records_gradients(candidate: Candidate) -> str:
    """Why no gradients can be computed, or ""."""
    declared = candidate.declaration
    if "gradients" not in declared.features:
        return "it declares that it has no gradients"
    if "gradients" in declared.declared_features:
        return ""
    if candidate.graph is not None:
        return "a graph has no gradients"
    if declared.arrays != "torch":
        return f"{declared.arrays} arrays carry no gradients"
    return "the integers of its precision have no gradients" if declared.precision else ""


def has_golden_gradients(candidate: Candidate) -> str:
    """Why there are no golden gradients, or ""."""
    return records_gradients(candidate) or why_unknown(
        candidate.declaration.semantics, candidate.kind
    )


def inputs_for_gradients(subject: Subject, problem: Problem, *, whole: bool = False) -> Inputs:
    """The inputs of a problem without a cache and without sinks.

    ``whole`` keeps both for a core. A layer caches heads, while the golden projects tokens.
    """
    if whole and subject.candidate.kind == "core":
        return subject.inputs(problem)
    return subject.inputs(problem.replace(past=0, sinks=False))


def with_full_rows(subject: Subject, problem: Problem, *, whole: bool = False) -> Inputs:
    """The inputs of a problem without the window or the flag that leaves a query without keys.

    Another clause judges what gradients a row without keys gives.
    """
    inputs = inputs_for_gradients(subject, problem, whole=whole)
    causal = subject.declaration.always_causal
    for fewer in ({"window": None}, {"window": None, "causal": causal}):
        if not has_empty_rows(subject, inputs):
            return inputs
        inputs = inputs_for_gradients(subject, problem.replace(**fewer), whole=whole)
    return inputs


def output_gradient(
    subject: Subject, problem: Problem, inputs: Inputs, rows: Tensor | None = None
) -> Tensor:
    """Independent normal numbers of the answer's shape, in the working dtype.

    Zero in rows that cannot be judged (without keys, absent, not representable), and where
    ``rows``, which broadcasts to the answer, is False.
    """
    drawn = normal(inputs.output_shape, generator_for(problem, UPSTREAM)).to(inputs.query.dtype)
    judged = judged_rows(subject, inputs)
    judged = judged if rows is None else judged & rows
    return drawn.masked_fill(~judged, 0.0)


def judged_rows(subject: Subject, inputs: Inputs) -> Tensor:
    """The judged rows of the answer, broadcastable to it."""
    if subject.candidate.golden_known:
        return subject.golden(inputs).judged
    point = subject.declaration.semantics
    return ~inputs.answer_rows(~inputs.allowed(point).any(dim=-1), point)


def has_empty_rows(subject: Subject, inputs: Inputs) -> bool:
    """Whether a query present in the call has no key."""
    point = subject.declaration.semantics
    empty = ~inputs.allowed(point).any(dim=-1)
    open_rule = subject.declaration.empty_rows in ("nan", "any")
    if open_rule and point.score_mod is not None and subject.candidate.golden_known:
        empty = empty | subject.golden(inputs).core.empty  # a function may hide keys, too
    absent = inputs.absent
    return bool((empty if absent is None else empty & ~absent).any())


def has_short_heads(subject: Subject, inputs: Inputs) -> bool:
    """Whether a normalised head of a token that counts is so short that its gradient overflows."""
    point = subject.declaration.semantics
    if point.qk_norm == "none" or not subject.candidate.golden_known:
        return False
    core = subject.golden(inputs).core
    read = core.allowed.any(dim=1, keepdim=True)
    rows, keys = read.any(dim=-1, keepdim=True), read.any(dim=-2).unsqueeze(-1)
    return any(
        bool(((_norms(heads, point) < model.SHORTEST_NORM) & counts).any())
        for heads, counts in ((core.given_query, rows), (core.given_key, keys))
    )


def _norms(heads: Tensor, point: golden.Semantics) -> Tensor:
    heads = golden.joined_heads(heads, point)
    if point.qk_norm == "layer" and heads.numel():
        heads = heads - heads.mean(dim=-1, keepdim=True)
    return golden.norms(heads, point)


def cannot_be_judged(subject: Subject, inputs: Inputs) -> bool:
    """Whether other clauses judge these gradients, or the gradients may overflow."""
    return has_empty_rows(subject, inputs) or has_short_heads(subject, inputs)


def drawn_gradients_match(subject: Subject, problem: Problem, inputs: Inputs) -> Finding:
    """Compare the gradients of a random output gradient with the golden; each query needs a key."""
    if cannot_be_judged(subject, inputs):
        return Finding(binding=False)
    upstream = output_gradient(subject, problem, inputs)
    gradients = promised_gradients(subject, subject.gradients.of(inputs, upstream))
    return matches_golden_gradients(subject, inputs, upstream, gradients)


def matches_golden_gradients(
    subject: Subject, inputs: Inputs, upstream: Tensor, gradients: Gradients
) -> Finding:
    """Every gradient is the golden one within its bound.

    On independent inputs their errors must have nothing in common, too. The example binds only if
    gradients of half the size would be wrong.
    """
    expected = subject.gradients.oracle.answer(inputs, upstream)
    return compare_gradients(subject, inputs, expected, gradients)


def compare_gradients(
    subject: Subject, inputs: Inputs, expected: GradientAnswer, gradients: Gradients
) -> Finding:
    """Compare every gradient with the expected gradient within its bound."""
    if not expected.representable:
        reason = "its score_mod has no finite slope that torch can find" * expected.without_slope
        return Finding(inapplicable=reason)
    generic = inputs.generic and subject.dtype != "float64"
    margin, binding, violation = 0.0, True, None
    for name, gradient in _golden_by_argument(expected.gradients, inputs).items():
        if name not in gradients.by_name:
            continue
        allowed = gradient.allowed(generic=generic)
        wording = f"the gradient of {described(name)} is wrong"
        if name in gradients.missing:
            wording = f"no gradient reaches {described(name)}"
        agreement = compare(
            gradients.by_name[name],
            gradient.value,
            allowed,
            wording=wording,
            axes=axes_of(name, inputs),
        )
        margin = max(margin, agreement.margin)
        if name in ("query", "key", "value", "x", "context"):
            binding = binding and moves(gradient.value, gradient.value / 2.0, allowed)
        violation = violation or of_gradient(name, agreement)
        if violation is None and generic:
            violation = in_common(name, gradients.by_name[name], gradient)
    return Finding(binding=binding, margin=margin, violation=violation)


def promised_gradients(subject: Subject, gradients: Gradients) -> Gradients:
    """The gradients but those of weights, cache, sinks or learned arguments that nobody promised.

    A cache may be what earlier calls left behind, and sinks and learned arguments may be constants.
    """
    declared = subject.declaration
    weights = {name for name in gradients.by_name if name not in _INPUTS}
    for names, promised in (
        (weights, "grad_weights" in declared.features),
        (set(CACHED_NAMES), "gradients" in declared.declared_features),
        *(
            ({name}, "gradients" in declared.declared_features)
            for name in ("sinks", *LEARNED_NAMES)
        ),
    ):
        if not promised and names <= gradients.missing:
            gradients = gradients.without(names)
    return gradients


_INPUTS = frozenset((*KEYWORD_LEAVES, *(name for names in INPUT_NAMES.values() for name in names)))


def _golden_by_argument(gradients: dict[str, Gradient], inputs: Inputs) -> dict[str, Gradient]:
    """The golden gradient of each tensor argument, with the errors shared by its keys."""
    length = inputs.geometry.key_length
    widened = {
        name: with_shared_errors(exact, length) if name in TOKENS else exact
        for name, exact in gradients.items()
    }
    return separate_cache(widened, inputs)


def with_shared_errors(gradient: Gradient, key_length: int) -> Gradient:
    """The bounds of tokens' gradients where all keys of a head share the error of a sum over them.

    The gradients of a row's scores add up to zero but for their errors. An implementation that
    subtracts the mean of the keys or of the values, or merges parts of the keys, passes that error
    to all keys: in the worst case the largest error, of independent errors their mean.
    """

    def widened(bound: Tensor, share: float) -> Tensor:
        if not bound.numel():
            return bound
        return torch.maximum(bound, share * bound.amax(dim=(-2, -1), keepdim=True))

    mean = max(key_length, 1) ** -0.5
    return Gradient(
        value=gradient.value,
        worst=widened(gradient.worst, 1.0),
        derive=lambda: GradientStatistics(
            bound=widened(gradient.bound, mean),
            scale=widened(gradient.scale, mean),
            scaling=gradient.scaling,
        ),
    )


def described(name: str) -> str:
    """What a gradient belongs to, in words for a message."""
    return DESCRIPTIONS.get(name, name)


def of_gradient(name: str, comparison: Comparison) -> Violation | None:
    """The violation of a wrong gradient, with the name of its tensor; None where it agrees."""
    violation = comparison.violation
    if violation is None or not violation.compared:
        return violation
    return replace(violation, compared={**violation.compared, "gradient": described(name)})


def axes_of(name: str, inputs: Inputs) -> tuple[str, ...]:
    """The names of the axes of a gradient."""
    if name == "bias":
        return ("batch", "head", "query", "key")
    tokens = TOKENS if inputs.is_layer else HEADS
    name = CACHED_NAMES.get(name, name)
    if name in tokens:
        return tokens[name]
    if name in ("sinks", "temperature"):
        return ("head",)
    if name in LEARNED_NAMES:
        given = inputs.learned_arguments[name].dim()
        names = {"alibi_slopes": ("batch", "head"), "relative_table": ("bucket", "head")}
        names |= dict.fromkeys(golden.MEMORY, ("head", "channel"))
        return names.get(name, ("channel",))[-given:]
    return ("row",) if name.endswith("_bias") else ("row", "column")


def in_common(name: str, got: Tensor, gradient: Gradient) -> Violation | None:
    """The violation where all errors of a gradient have more in common than rounding explains."""
    fit = gradient_fit(got.double() - gradient.value, gradient)
    if fit is None:
        return None
    beyond = [kind for kind, each in fit.fits.items() if abs(each.scale_error) > each.scale_allowed]
    if beyond:
        kind = min(beyond, key=lambda each: fit.fits[each].unexplained)
        what = "a multiple of it" if kind == "factor" else "a scale of the logits"
        fitted = fit.fits[kind]
        message = (
            f"the errors of the gradient of {described(name)} fit {what} with a relative error "
            f"of {fitted.scale_error:+.3g} (allowed {fitted.scale_allowed:.3g})"
        )
        return Violation(kind="value", message=message, got=fitted.scale_error, expected=0.0)
    if fit.unexplained > 1.0:
        message = (
            f"the errors of the gradient of {described(name)} are together larger than rounding "
            f"makes them: {fit.unexplained:.3g} times their typical size"
        )
        return Violation(kind="value", message=message, got=fit.unexplained, expected=1.0)
    return None


def exactly_zero(
    gradients: Gradients, names: tuple[str, ...], where: Tensor, inputs: Inputs, wording: str
) -> Violation | None:
    """Require zero gradients at some tokens, bool ``[B, Hkv, L]``; ``wording`` holds ``{}``."""
    tokens = (where.all(dim=1) if inputs.is_layer else where).unsqueeze(-1)
    chosen = {name: gradients.by_name[name] for name in names if name in gradients.by_name}
    return first_wrong(chosen, torch.zeros_like, inputs, wording, judged=tokens)


def first_wrong(
    gradients: Mapping[str, Tensor],
    expected: Callable[[Tensor], Tensor],
    inputs: Inputs,
    wording: str,
    *,
    judged: Tensor | None = None,
) -> Violation | None:
    """The violation of the first gradient that differs from its exact expectation."""
    for name, tensor in gradients.items():
        agreement = compare(
            tensor,
            expected(tensor),
            torch.zeros(tensor.shape, dtype=torch.float64),
            judged=judged,
            wording=wording.format(described(name)),
            axes=axes_of(name, inputs),
        )
        if agreement.violation is not None:
            return of_gradient(name, agreement)
    return None


def by_kv_head(allowed: Tensor, read: Tensor, num_kv_heads: int) -> Tensor:
    """Whether a query head of each key/value head attends a key: ``[B, Hkv, Lk]``.

    ``allowed [B, H, Lq, Lk]``; ``read [H]`` is the key/value head of each query head.
    """
    attended = allowed.any(dim=2)
    merged = torch.zeros(attended.shape[0], num_kv_heads, attended.shape[-1], dtype=torch.bool)
    for kv_head in range(num_kv_heads):
        merged[:, kv_head] = attended[:, read == kv_head].any(dim=1)
    return merged


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientRun:
    """Gradients with the inputs and the output gradient behind them."""

    inputs: Inputs
    upstream: Tensor
    gradients: Gradients


def same_gradients(
    subject: Subject, first: GradientRun, second: Gradients, wording: str, *, factor: float = 1.0
) -> Finding:
    """Gradients of an equal call are ``factor`` times the first ones, within both bounds.

    ``wording`` holds ``{}`` for what the gradient belongs to.
    """
    bounds = gradient_bounds(subject, first)
    finding = Finding(binding=bool(bounds), margin=0.0)
    for name, tensor in second.by_name.items():
        if name not in first.gradients.by_name or name not in bounds:
            continue
        expected = factor * first.gradients.by_name[name].double()
        allowed = largest_everywhere((1.0 + factor) * bounds[name])
        agreement = compare(
            tensor,
            expected,
            allowed,
            wording=wording.format(described(name)),
            both_answers=True,
            axes=axes_of(name, first.inputs),
        )
        margin = max(finding.margin or 0.0, agreement.margin)
        finding = Finding(
            binding=finding.binding,
            margin=margin,
            violation=finding.violation or of_gradient(name, agreement),
        )
    return finding


def largest_everywhere(bound: Tensor) -> Tensor:
    """The largest bound of a tensor, for all its elements.

    Laws are checked on gradients that may be wrong elsewhere, and then round like other elements.
    """
    if bound.numel() == 0:
        return bound
    return bound.amax().expand(bound.shape)


def gradient_bounds(subject: Subject, run: GradientRun) -> dict[str, Tensor]:
    """The allowed distance of each gradient from the exact gradient, by name.

    A bound without a derivation is measured: the change of the candidate's own gradients when
    every input changes by one unit. Empty where the golden gradients cannot be represented.
    """
    kind = subject.candidate.kind
    if subject.candidate.golden_known and not why_unknown(subject.declaration.semantics, kind):
        expected = subject.gradients.oracle.answer(run.inputs, run.upstream)
        if not expected.representable:
            return {}
        return {name: gradient.worst for name, gradient in expected.gradients.items()}
    return measured_bounds(
        subject,
        run.inputs,
        run.gradients.by_name,
        lambda inputs: subject.gradients.of(inputs, run.upstream).by_name,
    )


def measured_bounds(
    subject: Subject,
    inputs: Inputs,
    gradients: dict[str, Tensor],
    again: Callable[[Inputs], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """How far gradients move with the last digit of the inputs; ``again`` computes them."""
    unit = torch.finfo(inputs.query.dtype).eps
    generator = torch.Generator().manual_seed(len(str(inputs.geometry)))
    widest = dict.fromkeys(gradients, 0.0)
    with subject.recorded(None):
        for _ in range(SPREAD_CALLS):
            moved = again(nudged(inputs, generator))
            for name, tensor in gradients.items():
                if name in moved:
                    apart = _largest(moved[name].double() - tensor.double())
                    widest[name] = max(widest[name], apart)
    return {
        name: torch.full(
            tensor.shape,
            model.SPREAD_FACTOR * (widest[name] + unit * _largest(tensor)),
            dtype=torch.float64,
        )
        for name, tensor in gradients.items()
    }


def _largest(tensor: Tensor) -> float:
    return float(tensor.double().abs().nan_to_num().max()) if tensor.numel() else 0.0
