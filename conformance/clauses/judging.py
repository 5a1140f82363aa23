"""The tools of most clauses: comparisons of answers, and when they do not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .._golden import golden
from ..base.geometry import LENGTHS
from ..calls.calling import Answer
from ..calls.devices import taken
from ..declare.candidate import Candidate
from ..oracle.comparison import WEIGHT_AXES, Comparison, View, add_relation, compare, moves
from ..oracle.headroom import finite_limit as largest_finite
from ..oracle.oracle import Golden, known_weights
from ..oracle.yardstick import Yardstick, fitted_scale_error
from ..problems.inputs import Inputs
from ..problems.space import admits_lengths, can_cross, is_fixed
from .rearranging import unchanged
from .registry import Finding
from .subject import Subject

# An answer that is not attention must be wrong by so many bounds somewhere. In bfloat16, whose
# bounds are eight times those of float16, weights of normalised heads are too even for ten.
SIGNAL = 10.0
SIGNAL_IN_BFLOAT16 = 4.0


def has_signal(expected: Golden, inputs: Inputs, bound: Tensor, judged: Tensor) -> bool:
    """Zeros, the mean of the attended values, and the first key's value are all clearly wrong."""
    coarse = inputs.query.dtype == torch.bfloat16
    wide = (SIGNAL_IN_BFLOAT16 if coarse else SIGNAL) * bound
    return all(
        moves(expected.output, other, wide, judged) for other in _lazy_answers(expected, inputs)
    )


def _lazy_answers(expected: Golden, inputs: Inputs) -> Iterator[Tensor]:
    yield torch.zeros_like(expected.output)
    core = expected.core
    if core.value.shape[-2] == 0:
        return
    counts = core.allowed.sum(dim=-1, keepdim=True).clamp_min(1)
    yield through_output(expected, inputs, (core.allowed.double() @ core.value) / counts)
    yield through_output(expected, inputs, core.value[..., :1, :].expand(core.output.shape))


def through_output(expected: Golden, inputs: Inputs, heads: Tensor) -> Tensor:
    """The answer for given head outputs: unchanged for a core, projected for a layer."""
    if isinstance(expected.evaluation, golden.Attention):
        return heads
    point = expected.core.semantics
    return golden.project_output(golden.merge_heads(heads, point), known_weights(inputs), point)


# A wrong answer that an example must tell from the right answer: the golden answer to other inputs,
# the golden answer at another point of the semantics, or any other output.
Counterfactual = Inputs | golden.Semantics | Callable[[], Tensor]


def matches_golden(
    subject: Subject,
    inputs: Inputs,
    wording: str,
    *,
    answer: Tensor | None = None,
    counterfactual: Counterfactual | None = None,
    judged: Tensor | None = None,
    signal: bool = True,
) -> Finding:
    """Compare the answer (``answer``, else that of a call) with the golden within its bound.

    The example binds only if it can tell the ``counterfactual`` from the golden answer and, with
    ``signal``, if answers that are no attention are clearly wrong.
    """
    answer = subject.any_answer(inputs) if answer is None else answer
    expected = subject.golden(inputs)
    judged = expected.judged if judged is None else judged
    agreement = compare(answer, expected.output, expected.bound, judged=judged, wording=wording)
    binding = bool(judged.any())
    if subject.only_violations:
        return Finding.of(agreement, binding=binding)
    if binding and counterfactual is not None:
        other = golden_at(subject, inputs, counterfactual)
        binding = moves(expected.output, other, expected.bound, judged)
    if binding and signal:
        binding = has_signal(expected, inputs, expected.bound, judged)
    return Finding.of(agreement, binding=binding)


def finite_limit(subject: Subject) -> float:
    """The largest finite number of both the candidate's tensors and its accumulator."""
    return largest_finite(subject.declaration, subject.dtype)


def narrow_range(subject: Subject) -> bool:
    """Whether a candidate holds no larger numbers than float16 does; bfloat16 does.

    Or loses small numbers next to large ones, as 8-bit integers do below a 255th of the range.
    """
    narrow = finite_limit(subject) <= torch.finfo(torch.float16).max
    return narrow or bool(subject.declaration.precision)


def wide_range(subject: Subject) -> bool:
    """Whether a candidate is judged in float32 or wider, without an accumulator like float16."""
    halves = subject.dtype in ("float16", "bfloat16")
    return not halves and finite_limit(subject) > torch.finfo(torch.float16).max


def golden_at(subject: Subject, inputs: Inputs, other: Counterfactual) -> Tensor:
    """The output of a counterfactual for some inputs."""
    if isinstance(other, Inputs):
        return subject.oracle.output(other)
    if isinstance(other, golden.Semantics):
        return subject.oracle.output(inputs, other)
    return other()


def same_answer(
    subject: Subject,
    first: Inputs,
    second: Inputs,
    wording: str,
    *,
    view: View = unchanged,
    judged: Tensor | None = None,
    counterfactual: Counterfactual | None = None,
) -> Finding:
    """The candidate's answer to ``second`` equals ``view`` of its answer to ``first``.

    Both answers carry errors, and rounding the transformed inputs may move the exact answer: the
    allowance is the sum of both bounds and the distance of the two golden answers.
    The example binds only if it can tell the ``counterfactual``, whose output has the rows of that
    to ``second``, from the golden answer.
    """
    first_answer, second_answer = subject.any_answer(first), subject.answer(second)
    return relate(
        subject,
        (first, first_answer),
        (second, second_answer),
        wording,
        view=view,
        judged=judged,
        counterfactual=counterfactual,
    )


def relate(
    subject: Subject,
    first: tuple[Inputs, Tensor],
    second: tuple[Inputs, Tensor],
    wording: str,
    *,
    view: View = unchanged,
    judged: Tensor | None = None,
    counterfactual: Counterfactual | None = None,
) -> Finding:
    """Two answers agree, as in :func:`same_answer`; each comes with its inputs.

    Where they are equal, the golden answer and bound of the first stand for both.
    """
    expected = view(first[1])
    equal = subject.candidate.golden_known and _are_equal_and_finite(second[1], expected)
    if equal and (counterfactual is None or subject.only_violations):
        rows = view(subject.golden(first[0]).judged.expand(first[1].shape)).expand(expected.shape)
        return Finding(binding=bool((rows if judged is None else rows & judged).any()), margin=0.0)
    first_golden, first_bound, first_judged = subject.frame(first[0])
    viewed_golden = None if first_golden is None else view(first_golden)
    viewed_bound, viewed_rows = view(first_bound), view(first_judged.expand(first_bound.shape))
    viewed = viewed_golden, viewed_bound, viewed_rows
    second_golden, second_bound, second_judged = viewed if equal else subject.frame(second[0])
    rows = viewed_rows.expand(second_bound.shape) & second_judged
    judged = rows if judged is None else rows & judged
    allowed = column(viewed_bound) + column(second_bound)
    if viewed_golden is not None and second_golden is not None:
        allowed = allowed + torch.nan_to_num((viewed_golden - second_golden).abs())
    agreement = compare(
        second[1], expected, allowed, judged=judged, wording=wording, both_answers=True
    )
    binding = bool(judged.any())
    weighed = binding and not subject.only_violations
    if weighed and counterfactual is not None and second_golden is not None:
        other = golden_at(subject, second[0], counterfactual)
        binding = moves(second_golden, other, allowed, judged)
    violation = add_relation(
        agreement.violation, subject.recording, expected=[(first[1], view)], got=[(second[1], None)]
    )
    return Finding(binding=binding, margin=agreement.margin, violation=violation)


def same_unless_identical(
    subject: Subject, first: tuple[Inputs, Tensor], second: tuple[Inputs, Tensor], wording: str
) -> Finding:
    """Two answers to equal inputs agree; no bound is computed where they are equal."""
    if _are_equal_and_finite(first[1], second[1]):
        return Finding(margin=0.0)
    return relate(subject, first, second, wording)


def _are_equal_and_finite(answer: Tensor, other: Tensor) -> bool:
    same = answer.dtype == other.dtype and torch.equal(answer, other)
    return same and bool(answer.isfinite().all())


def identical(tensor: Tensor, before: Tensor) -> bool:
    """Whether two tensors hold the same bits; all NaN count as equal."""
    if tensor.shape != before.shape or tensor.dtype != before.dtype:
        return False
    if tensor.is_complex():
        return identical(torch.view_as_real(tensor), torch.view_as_real(before))
    if tensor.itemsize == 1:  # torch compares no formats of eight bits
        return torch.equal(tensor.view(torch.uint8), before.view(torch.uint8))
    nan = tensor.isnan()
    return (
        torch.equal(nan, before.isnan())
        and torch.equal(tensor.masked_fill(nan, 0), before.masked_fill(nan, 0))
        and torch.equal(tensor.signbit() | nan, before.signbit() | nan)
    )


def still_holds(answer: Answer) -> bool:
    """Whether the returned tensor still holds the values it was returned with."""
    if answer.returned is None or answer.kept is None:
        return True
    return identical(taken(answer.returned).reshape(answer.kept.shape), answer.kept)


def first_place(where: Tensor) -> tuple[int, ...]:
    """The index of the first element that is True."""
    return tuple(int(index) for index in where.nonzero()[0])


def column(bound: Tensor) -> Tensor:
    """The largest bound of each channel over items and rows.

    Laws are checked on answers that may be wrong elsewhere: a candidate that mixes up its rows
    rounds like another row, and must not fail every law for it.
    """
    if bound.numel() == 0:
        return bound
    return bound.amax(dim=(0, -2), keepdim=True).expand(bound.shape)


def can_hold_nan(candidate: Candidate) -> str:
    """Why NaN cannot be passed on, or ""."""
    precision = candidate.declaration.precision
    if candidate.declaration.kv_format == "int8":
        return "the integers of its keys and values have no NaN"
    return f"the integers of its precision {precision} have no NaN" if precision else ""


def order_is_free(candidate: Candidate) -> str:
    """Why the order of tokens, or how many come before one, changes an answer, or ""."""
    if candidate.declaration.always_causal:
        return "it always applies a causal rule"
    return places_matter(candidate)


def has_no_memory(candidate: Candidate) -> str:
    """Why a query has a key with a value beside those of its call, or ""."""
    return "every query attends bias_k, too" * candidate.has_memory


def attends_keys_alone(candidate: Candidate) -> str:
    """Why a query's weights may go to something other than its keys, or ""."""
    if candidate.has_memory:
        return has_no_memory(candidate)
    return "every query attends a null key, too" * candidate.declaration.semantics.null_key


def places_matter(candidate: Candidate) -> str:
    """Why items, heads and tokens may be told apart by their place, or ""."""
    changed = candidate.declaration.semantics.score_mod is not None
    return "its score_mod may tell items, heads and tokens apart by their place" if changed else ""


def logits_grow(candidate: Candidate) -> str:
    """Why larger queries or keys need not make larger logits, or ""."""
    point = candidate.declaration.semantics
    if point.qk_norm != "none":
        return "its queries and keys are normalised, so that no logit is so large"
    return "" if point.score_mod is None else "its score_mod may keep logits from being so large"


def heads_stay(candidate: Candidate) -> str:
    """Why heads cannot be exchanged, or ""."""
    if candidate.kind == "layer" and not candidate.draws_weights:
        return "its weights are fixed, so heads cannot be exchanged"
    declared = candidate.declaration
    position = "alibi" if declared.semantics.alibi else declared.position
    if position in ("alibi", "relative"):
        return f"its {position} positions differ by head"
    return places_matter(candidate)


def are_golden_weights(subject: Subject, inputs: Inputs, answer: Answer) -> Finding:
    """The returned weights equal the golden ones; rows without keys or that overflow are left out.

    The weights are the output for values that are unit vectors, so the bound of the core for those
    values is the bound of the weights.
    """
    expected = subject.golden(inputs)
    bound = subject.oracle.weights_bound(inputs)
    if answer.weights is None:
        msg = "weights were requested, so the answer that was read holds them"
        raise LookupError(msg)
    judged = (~expected.empty & expected.representable_core).unsqueeze(-1)
    wording = "the returned weights are wrong"
    agreement = compare(
        answer.weights, expected.weights, bound, judged=judged, wording=wording, axes=WEIGHT_AXES
    )
    uniform = expected.core.allowed.double()
    uniform = uniform / uniform.sum(dim=-1, keepdim=True).clamp_min(1.0)
    binding = moves(expected.weights, uniform, bound, judged)
    return Finding.of(agreement, binding=binding)


def measures_golden(
    subject: Subject,
    inputs: Inputs,
    wording: str,
    *,
    counterfactual: Counterfactual | None = None,
    signal: bool = True,
) -> Finding:
    """Compare the answer with the golden within the smallest derived bound.

    The example binds only if it can tell the ``counterfactual`` from the golden answer and, with
    ``signal``, if answers that are no attention are clearly wrong.
    """
    yardstick = subject.yardstick(inputs)
    answer = subject.any_answer(inputs)
    comparison = explained(subject, inputs, answer, measure(yardstick, answer, wording))
    binding = bool(yardstick.judged.any())
    if subject.only_violations:
        return Finding.of(comparison, binding=binding)
    if binding and counterfactual is not None:
        other = golden_at(subject, inputs, counterfactual)
        binding = moves(yardstick.output, other, yardstick.bound, yardstick.judged)
    if binding and signal:
        binding = has_signal(subject.golden(inputs), inputs, yardstick.bound, yardstick.judged)
    return Finding.of(comparison, binding=binding)


def measure(yardstick: Yardstick, answer: Tensor, wording: str) -> Comparison:
    """Compare an answer with the most exact one, within the sharpest bound."""
    return compare(
        answer,
        yardstick.output,
        yardstick.bound,
        judged=yardstick.judged,
        wording=wording,
        remainder=yardstick.remainder,
    )


def explained(
    subject: Subject, inputs: Inputs, answer: Tensor, comparison: Comparison
) -> Comparison:
    """Add the parts of the bound, and any explaining scale error, to a failed comparison."""
    if comparison.kind != "value" or subject.only_violations:
        return comparison
    return comparison.replace(
        parts=subject.oracle.shares(inputs, comparison.index),
        scale_error=fitted_scale_error(subject.oracle, inputs, answer),
    )


def stands_alone(candidate: Candidate) -> str:
    """Why no call can be made with one query and the keys of its window alone, or ""."""
    declared = candidate.declaration
    if any(is_fixed(candidate, name) for name in LENGTHS):
        return "its geometry pins the lengths"
    if declared.position is not None:
        return f"it mixes in {declared.position} positions, which fewer keys would move"
    if declared.always_causal and declared.semantics.causal_alignment == "top-left":
        return "it always applies a causal rule from the first key on"
    return sees_by_place(candidate)


def sees_by_place(candidate: Candidate) -> str:
    """Why the places of tokens do not tell which keys a query sees, or ""."""
    by = candidate.declaration.semantics.causal_by
    return "" if by == "places" else "its queries see keys by positions, not by places in memory"


def as_alone(
    subject: Subject,
    inputs: Inputs,
    row: int,
    wording: str,
    *,
    counterfactual: Counterfactual,
) -> Finding:
    """Compare a row with its query alone over the keys that flag and window admit.

    The example binds only if the row can tell the ``counterfactual``, an output for all rows, from
    the golden answer, and only where the row sees a key.
    """
    lone_row = _alone(subject, inputs, row)
    if lone_row is None:
        return Finding(binding=False)
    alone, view, judged = lone_row
    return same_answer(
        subject,
        inputs,
        alone,
        wording,
        view=view,
        judged=judged,
        counterfactual=lambda: view(golden_at(subject, inputs, counterfactual)),
    )


def _alone(subject: Subject, inputs: Inputs, row: int) -> tuple[Inputs, View, Tensor] | None:
    """A call for one row alone, the matching view of the whole answer, and the judged rows.

    None where the row sees no key, or the candidate takes no call of these lengths.
    """
    visible = _structure(subject, inputs)[row].nonzero().flatten()
    if not len(visible):
        return None
    keys = slice(int(visible[0]), int(visible[-1]) + 1)
    # Where there must be as many queries as keys, all queries of the window are passed.
    rows = slice(row, row + 1) if can_cross(subject.candidate) else keys
    alone = inputs.with_tokens(
        query=inputs.query[..., rows, :],
        key=inputs.key[..., keys, :],
        value=inputs.value[..., keys, :],
    ).replace(
        keep=_cut(inputs.keep, rows, keys),
        bias=_cut(inputs.bias, rows, keys),
        tables=inputs.tables and inputs.tables.from_row(keys.start),
        quantised=inputs.quantised
        and inputs.quantised.taken(keys=torch.arange(keys.start, keys.stop)),
        positions=inputs.positions
        and inputs.positions.of_keys(torch.arange(keys.start, keys.stop)).of_queries(
            torch.arange(rows.start, rows.stop)
        ),
        causal=inputs.causal and inputs.always_causal,
        window=None,
        past=0,
    )
    if not admits_lengths(subject.candidate, alone.geometry):
        return None
    judged = (torch.arange(inputs.geometry.query_length)[rows] == row).unsqueeze(-1)
    return alone, lambda answer: answer[..., rows, :], judged


def _structure(subject: Subject, inputs: Inputs) -> Tensor:
    """The keys that flag and window admit: bool ``[Lq, Lk]``."""
    return inputs.structure(subject.declaration.semantics)


def _cut(mask: Tensor | None, rows: slice, keys: slice) -> Tensor | None:
    if mask is None:
        return None
    return (mask if mask.shape[2] == 1 else mask[:, :, rows])[..., keys]


def all_of(findings: list[Finding]) -> Finding:
    """Several findings as one: the first violation, or the largest margin."""
    failed = next((finding for finding in findings if finding.violation is not None), None)
    if failed is not None:
        return failed
    margins = [finding.margin for finding in findings if finding.margin is not None]
    return Finding(
        binding=any(finding.binding for finding in findings), margin=max(margins, default=None)
    )
