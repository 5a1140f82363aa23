"""Observed and exact gradients of a candidate on problems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from .._golden import golden
from ..calls.calling import CandidateFailure
from ..calls.differentiating import Gradients, NotDifferentiable
from ..clauses.judging_gradients import has_empty_rows, output_gradient, with_full_rows
from ..clauses.subject import Subject
from ..oracle.gradient_oracle import GradientAnswer
from ..problems.combinations import options_alone
from ..problems.edges import edge_problems
from ..problems.fitting import fitted_geometry
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..problems.space import Space
from ..tolerance import model
from .conditions import plainness
from .mistakes.backward_pass import both_passes
from .mistakes.named_mistake import NamedMistake
from .neighbours import OWN, draw_unseen_sizes, neighbours

# The number of hand-picked sizes, with which every clause begins.
SIZES: Final = 8
# Further sizes, and battery problems with other values, to confirm statements.
MORE_SIZES: Final = 6
AGAIN: Final = 6
# Problems past the edges of tiles; the first have no options.
TILES: Final = 2
OTHER_VALUES: Final = 7919
# Lengths between the usual sizes of tiles.
LENGTHS: Final = (3, 6, 13, 27, 45, 100, 200, 300)
FEW: Final = 3
_SPACE: Final = Space(mask="maybe", causal="never", finite_bias="maybe", values=("normal",))
_ROWS: Final = Space(causal="always", values=("normal",))
_TILES: Final = Space(edges="tiles", values=("normal",))
_BIAS: Final = Space(
    mask="always", forms=("bias",), finite_bias="always", patterns=("full",), values=("normal",)
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedGradients:
    """The observed and the exact gradients of one problem."""

    problem: Problem
    inputs: Inputs
    upstream: Tensor
    actual: Gradients
    expected: GradientAnswer
    point: golden.Semantics

    @cached_property
    def passes(self) -> golden.Run:
        """The right run of both passes, of which every wrong run is an edit."""
        return both_passes(self.inputs, self.point, self.upstream)

    @cached_property
    def wrong(self) -> tuple[str, ...]:
        """The names of the gradients that are beyond their bounds."""
        return tuple(
            name
            for name, exact in self.expected.gradients.items()
            if name in self.actual.by_name
            and not near(self.actual.by_name[name], exact.value, exact.worst)
        )


def battery_gradients(subject: Subject) -> list[ObservedGradients]:
    """Return the gradients on a battery of problems, without refused calls.

    Queries without keys whose gradients are not finite are left out: another clause judges them.
    """
    return [
        each
        for each in _observed(subject, _battery(subject))
        if _finite(each) or not has_empty_rows(subject, each.inputs)
    ]


def further_gradients(
    subject: Subject, observed: Sequence[ObservedGradients], *, time: int = 1
) -> list[ObservedGradients]:
    """Return the gradients on unseen problems: other values and other sizes.

    Included are neighbours of the plainest wrong problem, except calls with dropout if it has none:
    other clauses judge these. Each ``time`` has its own values.
    """
    candidate, dtype = subject.candidate, subject.dtype
    wrong = sorted((each for each in observed if each.wrong), key=_size, reverse=True)
    problems = [each.problem for each in wrong[:: len(wrong) // AGAIN + 1]]
    right = [each.problem for each in observed if not each.wrong]
    problems += right[:: len(right) // AGAIN + 1]
    problems += edge_problems(candidate, _SPACE, dtype=dtype)[SIZES : SIZES + MORE_SIZES]
    problems += edge_problems(candidate, _TILES, dtype=dtype)[:TILES]
    if "bias" in subject.declaration.masks:
        problems += edge_problems(candidate, _BIAS, dtype=dtype)[SIZES : SIZES + 2]
    problems += _lengthened(subject)
    if wrong:
        base = _telling(wrong).problem
        near_it = neighbours(subject, base, (OWN,))
        problems += (one for one in near_it if base.dropout or one.dropout is None)
    other = [
        problem.replace(seed=problem.seed + time * OTHER_VALUES, overrides=None)
        for problem in problems
    ]
    return [
        each
        for each in _observed(subject, dict.fromkeys(other))
        if not has_empty_rows(subject, each.inputs)
    ]


def gradients_at_unseen_sizes(
    subject: Subject, mistake: NamedMistake, observed: Sequence[ObservedGradients]
) -> list[ObservedGradients]:
    """Return the gradients at unseen sizes at which a mistake may be made."""
    seen = {each.inputs.geometry for each in observed}
    made = [each for each in observed if each.wrong and mistake.where(each.inputs)]
    if not made:
        return []
    problems = draw_unseen_sizes(subject, _telling(made).problem, mistake.sizes, seen)
    return list(_observed(subject, problems))


def observe_gradients(subject: Subject, problem: Problem) -> ObservedGradients | None:
    """Return the gradients of one problem; None if absent or not to be judged."""
    with subject.recorded(None):
        try:
            inputs = with_full_rows(subject, problem)
            upstream = output_gradient(subject, problem, inputs)
            actual = _gradients(subject, inputs, upstream)
        except (CandidateFailure, NotDifferentiable):
            return None
    expected = subject.gradients.oracle.answer(inputs, upstream)
    if not expected.representable:
        return None
    return ObservedGradients(
        problem=problem,
        inputs=inputs,
        upstream=upstream,
        actual=actual,
        expected=expected,
        point=subject.declaration.semantics,
    )


def near(actual: Tensor, expected: Tensor, bound: Tensor) -> bool:
    """Whether every element lies within its bound, or is NaN as expected."""
    apart = (actual.double() - expected).abs()
    if not bool(apart.isnan().any()):  # as most are: to look closer takes far longer
        return bool((apart <= bound).all())
    return bool((_apart(actual, expected) <= bound).all())


def _apart(actual: Tensor, expected: Tensor) -> Tensor:
    """Return the errors of elements: infinite for NaN in place of a number."""
    both = actual.isnan() & expected.isnan()
    return (actual.double() - expected).abs().nan_to_num(nan=math.inf).masked_fill(both, 0.0)


def room(acted: Tensor, exact: Tensor, bound: Tensor) -> Tensor:
    """Return the tolerance around the acted result of a mistake; see ``model.ACTED_ROOM``."""
    if not bound.numel():
        return bound
    before, after = float(exact.abs().max()), float(acted.abs().nan_to_num(nan=0.0).max())
    grown = min(max(1.0, after / before if before > 0.0 else 1.0), model.MOST_GROWN)
    return torch.full_like(bound, model.ACTED_ROOM * grown**2 * float(bound.max()))


@dataclass
class SquaredErrors:
    """The squared errors of gradients, before and after an explanation."""

    before: float = 0.0
    left: float = 0.0
    size: float = 0.0

    def add(self, actual: Tensor, exact: Tensor, acted: Tensor) -> None:
        """Count one gradient."""
        self.size += float(exact.square().sum())
        self.before += float(_apart(actual, exact).square().sum())
        self.left += float(_apart(actual, acted).square().sum())

    @property
    def explained(self) -> bool:
        """Whether the explanation leaves hardly any error."""
        return self.left <= model.EXPLAINED_GRADIENTS * self.before

    @property
    def worsened(self) -> bool:
        """Whether the explanation leaves far more error, beyond the last digits of float64."""
        return self.left > model.AS_CLOSE * self.before + model.NEARLY_NOTHING**2 * self.size


def _gradients(subject: Subject, inputs: Inputs, upstream: Tensor) -> Gradients:
    differentiator = subject.gradients
    if inputs.bias is None or inputs.is_layer:
        return differentiator.of(inputs, upstream)
    try:
        taped = differentiator.tape(inputs, bias=True, weights=True)
        gradients = differentiator.pull(taped, upstream)
    except (CandidateFailure, NotDifferentiable):
        return differentiator.of(inputs, upstream)
    promised = "grad_bias" in subject.declaration.features
    return gradients if promised or "bias" not in gradients.missing else gradients.without({"bias"})


def _battery(subject: Subject) -> Iterator[Problem]:
    candidate, dtype = subject.candidate, subject.dtype
    problems = edge_problems(candidate, _SPACE, dtype=dtype)[:SIZES]
    problems += options_alone(candidate, _SPACE, dtype=dtype)
    if candidate.declaration.causal is not None:
        problems += edge_problems(candidate, _ROWS, dtype=dtype)[:SIZES]
    problems += edge_problems(candidate, _TILES, dtype=dtype)[:TILES]
    yield from dict.fromkeys(problems)


def _lengthened(subject: Subject) -> Iterator[Problem]:
    """Yield few queries with more and more keys, and the reverse, to tell tile sizes apart."""
    candidate = subject.candidate
    for plain in edge_problems(candidate, _TILES, dtype=subject.dtype)[:1]:
        for field, other in (("key_length", "query_length"), ("query_length", "key_length")):
            for length in LENGTHS:
                sizes = plain.geometry.replace(**{field: length, other: FEW})
                yield plain.replace(geometry=fitted_geometry(sizes, candidate, _TILES))


def _observed(subject: Subject, problems: Iterable[Problem]) -> Iterator[ObservedGradients]:
    for problem in problems:
        each = observe_gradients(subject, problem)
        if each is not None:
            yield each


def _finite(observed: ObservedGradients) -> bool:
    return all(bool(each.isfinite().all()) for each in observed.actual.by_name.values())


def _telling(observed: Sequence[ObservedGradients]) -> ObservedGradients:
    def plainest(each: ObservedGradients) -> tuple[bool, tuple[int, int]]:
        sizes = each.inputs.geometry
        return 1 in (sizes.query_length, sizes.key_length), plainness(each.inputs)

    return min(observed, key=plainest)


def _size(observed: ObservedGradients) -> int:
    return sum(observed.actual.by_name[name].numel() for name in observed.wrong)
