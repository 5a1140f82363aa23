"""What a candidate answered, and whether that is the golden answer or that of an acted mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward
from ..calls.differentiating import Taped
from ..clauses.registry import Clause
from ..clauses.subject import Differentiator, Subject
from ..oracle.comparison import errors_in_bounds
from ..oracle.oracle import Golden
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model
from .mistaken_answer import Combination, MistakenAnswer, act
from .mistakes import NotExpressible


@dataclass(frozen=True, kw_only=True, eq=False)
class BatteryAnswer:
    """Some inputs with what the candidate ``subject`` answered, as float64 of whatever shape.

    ``problem`` is what the inputs were drawn from, if they are that as it is.
    """

    subject: Subject
    inputs: Inputs
    output: Tensor
    problem: Problem | None = None

    @property
    def exact(self) -> Golden:
        """The golden answer."""
        return self.subject.golden(self.inputs)

    @cached_property
    def fits(self) -> bool:
        """Whether the answer has the shape of the golden one."""
        return self.exact.output.shape == self.output.shape

    @cached_property
    def _rows_open(self) -> Tensor | None:
        """Rows without keys where nothing is promised about them; None if there are none."""
        if self.subject.declaration.empty_rows != "any" or not self.fits:
            return None
        empty = self.exact.empty_rows
        return empty if bool(empty.any()) else None

    @cached_property
    def _judged(self) -> Tensor:
        """The elements whose golden answer is judged, of an answer that fits."""
        judged = self.exact.representable
        if self._rows_open is not None:
            judged = judged & ~self._rows_open
        return judged.expand(self.output.shape)

    @cached_property
    @torch.inference_mode()
    def margin(self) -> float:
        """How far the answer is from the golden one, in bounds; infinite for one of another kind.

        That is one of another shape, or with NaN and infinities in other places. A right answer may
        be nearer than that.
        """
        expected = self.exact.output
        if not self.fits or not _same_nonfinite(self.output, expected, self._judged):
            return math.inf
        least = self.exact.least_bound
        if least is not None:  # spares the bound, which costs the most
            margin = _largest(self.output, expected, least, self._judged)
            if margin <= 1.0:
                return margin
        return _largest(self.output, expected, self.exact.bound, self._judged)

    @cached_property
    def wrong(self) -> Tensor | None:
        """Elements outside the bound, bool of the answer's shape; None for an answer of another."""
        if not self.fits:
            return None
        expected = self.exact.output
        same_nan = torch.isnan(self.output) & torch.isnan(expected)
        far = ~((self.output - expected).abs() <= self.exact.bound) & ~same_nan
        return far & self._judged

    @cached_property
    def _right_rows(self) -> Tensor | None:
        """Rows without a wrong element, bool of the answer's shape but for the channels."""
        return None if self.wrong is None else ~self.wrong.any(dim=-1)

    @cached_property
    def _numbers(self) -> Tensor:
        """Where the golden answer is a number, of an answer that fits."""
        return torch.isfinite(self.exact.output)

    @cached_property
    def _distance(self) -> float:
        """The distance to the golden answer as root mean square."""
        return _size((self.output - self.exact.output)[self._numbers])

    @cached_property
    def _all_finite(self) -> bool:
        """Whether the whole answer is numbers."""
        return bool(torch.isfinite(self.output).all())

    def _as_close(self, left: float, judged: Tensor | None) -> bool:
        """Whether an error, as root mean square, is as small as rounding lets anybody come."""
        for least in (True, False):  # the soonest derived comes first
            size = self._bound_size(least=least, judged=judged)
            if size is not None and left <= model.AS_CLOSE * size:
                return True
        return False

    def _bound_size(self, *, least: bool, judged: Tensor | None) -> float | None:
        """The root mean square of a bound where answers are judged, None for all; remembered."""
        if judged is None and least in self._bound_sizes:
            return self._bound_sizes[least]
        bound = self.exact.least_bound if least else self.exact.bound
        if bound is None:
            return None
        chosen = self._numbers & torch.isfinite(bound)
        size = _size(bound[chosen if judged is None else chosen & judged])
        if judged is None:
            self._bound_sizes[least] = size
        return size

    @cached_property
    def _bound_sizes(self) -> dict[bool, float]:
        return {}

    @torch.inference_mode()
    def agrees(self, acted: MistakenAnswer) -> bool:
        """Whether it lies within the bound of an acted mistake, and much closer than golden."""
        if acted.output.shape != self.output.shape:
            return False
        judged = self._judged_with(acted)
        plain = self._all_finite and acted.all_finite
        if not plain and not _same_nonfinite(self.output, acted.output, judged):
            return False
        if not plain:
            finite = torch.isfinite(acted.output)
            judged = finite if judged is None else judged & finite
        if judged is not None and bool(judged.all()):
            judged = None
        error = self.output - acted.output
        if not self._much_closer(acted, error, judged):
            return False
        # The soonest derived comes first, and that of the mistake where the others are too narrow.
        if self.fits:
            for bound in (self.exact.least_bound, self.exact.bound):
                if bound is not None and _lies_within(error, bound, judged):
                    return True
        return _lies_within(error, acted.bound, judged)

    def _judged_with(self, acted: MistakenAnswer) -> Tensor | None:
        """The elements at which a mistake is judged, None for all.

        Not those where it may overflow, nor rows without keys about which nothing is promised.
        """
        right = self._right_rows if acted.has_empty_rows else None  # it takes a while
        unjudged = acted.unjudged(self.subject.declaration, right)
        if self._rows_open is not None:
            unjudged = self._rows_open if unjudged is None else unjudged | self._rows_open
        return None if unjudged is None else ~unjudged.expand(self.output.shape)

    def _much_closer(self, acted: MistakenAnswer, error: Tensor, judged: Tensor | None) -> bool:
        """Whether a mistake comes much closer than golden, or as close as rounding lets anybody.

        ``judged`` are the elements that count, None for all.
        """
        if not self.fits:
            return True
        if judged is None:
            left, distance = _size(error), self._distance
        else:
            left = _size(error[judged])
            distance = _size((self.output - self.exact.output)[judged & self._numbers])
        if left <= model.MUCH_CLOSER * distance or self._as_close(left, judged):
            return True
        if acted.stepwise:
            return False
        # The golden answer may be exact where that of the mistake is rounded.
        bound = acted.bound if judged is None else acted.bound[judged]
        return left <= model.AS_CLOSE * _size(bound)

    @torch.inference_mode()
    def closeness(self, acted: MistakenAnswer) -> tuple[float, float]:
        """What a mistake leaves of the squared errors of wrong elements, and all of them.

        Each error counts in units of the declared point's bound; an answer of another shape leaves
        nothing of one.
        """
        if self.wrong is None:
            return 0.0, 1.0
        exact = self.exact
        chosen = self.wrong & torch.isfinite(self.output) & torch.isfinite(exact.output)
        unexpected = float((self.wrong & ~chosen).any())
        if acted.output.shape != self.output.shape or not bool(chosen.any()):
            return 0.0, unexpected
        unit = exact.bound[chosen].clamp_min(model.LOST_WEIGHT)
        left = ((self.output - acted.output)[chosen] / unit).square().sum()
        total = ((self.output - exact.output)[chosen] / unit).square().sum()
        return float(left), float(total) + unexpected


class NoDifferentiator(Differentiator):
    """A differentiator that refuses: an acted answer has no history."""

    def tape(self, inputs: Inputs, **_options: object) -> Taped:
        """Raise LookupError, which speaks against no mistake."""
        del inputs
        msg = "an acted mistake has no gradients"
        raise LookupError(msg)


class StandIn(Subject):
    """A subject that answers as a candidate with some mistakes, rounded to the query's dtype."""

    only_violations = True

    def __init__(self, subject: Subject, acting: Callable[[Inputs], MistakenAnswer]) -> None:
        super().__init__(subject.candidate, subject.dtype, sealed=subject.sealed)
        self.oracle = subject.oracle
        self.inputs = subject.inputs
        self.gradients = NoDifferentiator(self)
        self.acting = acting
        self.is_open = False

    def forward(self, inputs: Inputs) -> Forward:
        """A function that is never called: the answer follows from the inputs alone."""
        del inputs
        return lambda: None

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """The acted answer; CandidateFailure for one of another shape, as for a candidate's."""
        del forward, call_arguments
        acted = self.acting(inputs)
        self.is_open |= acted.empties_rows(self.declaration.semantics)
        output: Tensor = acted.output.to(inputs.query.dtype)
        if output.shape != inputs.output_shape:
            message = f"the output has shape {list(output.shape)}"
            raise CandidateFailure(Violation(kind="shape", message=message))
        weights = acted.core.weights.to(inputs.query.dtype) if inputs.return_weights else None
        return Answer(output=output, returned=output, weights=weights)


def fails_alike(
    subject: Subject, made: Combination, clause: Clause, problem: Problem
) -> bool | None:
    """Whether a candidate with some mistakes fails a clause on a problem."""
    acting = partial(act, subject.oracle, subject.declaration.semantics, made)
    return fails_so(subject, acting, clause, problem)


def fails_so(
    subject: Subject,
    acting: Callable[[Inputs], MistakenAnswer],
    clause: Clause,
    problem: Problem,
) -> bool | None:
    """Whether a candidate that answers so fails a clause on a problem.

    None where nothing speaks for them or against them: they cannot be acted out on what the clause
    needs, or leave rows without keys, whose answer may be right or not.
    """
    stand_in = StandIn(subject, acting)
    try:
        fails = clause.check(stand_in, problem).violation is not None
    except CandidateFailure:
        return True
    except (NotExpressible, LookupError, ValueError, RuntimeError):
        return None
    return fails or (None if stand_in.is_open else False)


def within(actual: Tensor, expected: Tensor, bound: Tensor) -> Tensor:
    """Which elements lie within a bound, or are the same NaN or infinity; bool of their shape."""
    same = (torch.isnan(actual) & torch.isnan(expected)) | (actual == expected)
    return same | ((actual - expected).abs() <= bound)


def _lies_within(error: Tensor, bound: Tensor, judged: Tensor | None) -> bool:
    """Whether every judged error is a number within its bound, or zero; None judges all."""
    inside = (error.abs() <= bound) | (error == 0.0)
    return bool((inside if judged is None else inside | ~judged).all())


def _largest(actual: Tensor, expected: Tensor, bound: Tensor, judged: Tensor) -> float:
    """The largest judged error in bounds; infinite where no number stands in place of one."""
    judged = judged & torch.isfinite(expected)
    if bool((judged & ~torch.isfinite(actual)).any()):
        return math.inf
    ratio = errors_in_bounds((actual - expected).abs(), bound, judged)
    return float(ratio.max()) if ratio.numel() else 0.0


def _same_nonfinite(actual: Tensor, expected: Tensor, judged: Tensor | None) -> bool:
    """Whether NaN and both infinities stand in the same places, of those that are judged."""
    if bool(torch.isfinite(actual).all()) and bool(torch.isfinite(expected).all()):
        return True
    same = torch.isnan(actual) == torch.isnan(expected)
    for infinite in (torch.isposinf, torch.isneginf):
        same = same & (infinite(actual) == infinite(expected))
    return bool((same if judged is None else same | ~judged).all())


def _size(errors: Tensor) -> float:
    """Their root mean square; infinite if one is no number."""
    if not errors.numel():
        return 0.0
    size = float(errors.square().mean().sqrt())
    return math.inf if math.isnan(size) else size
