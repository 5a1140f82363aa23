"""Compares a candidate's answer with the golden answer and with those of acted mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from ..base.results import Violation
from ..calls.calling import Answer, Arguments, CandidateFailure, Forward
from ..calls.differentiating import Taped
from ..clauses.registry import Clause
from ..clauses.subject import Differentiator, Subject
from ..oracle.comparison import GROSS
from ..oracle.oracle import Golden
from ..problems.inputs import Inputs
from ..problems.problem import Problem
from ..tolerance import model
from .mistaken_answer import ActedAnswers, Array, Combination, MistakenAnswer, act, array_of
from .mistakes import NamedMistake, NotExpressible


@dataclass(frozen=True, kw_only=True, eq=False)
class BatteryAnswer:
    """Inputs and the answer of the candidate ``subject``, as float64 of whatever shape.

    ``problem`` is the unmodified problem behind ``inputs``, else None.
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
        """Rows about which nothing is promised; None if no row is open.

        Open are queries that no sequence has, and rows without keys if they may return anything.
        """
        if not self.fits:
            return None
        absent = self.inputs.absent
        rows = None if absent is None else absent.unsqueeze(-1)
        if self.subject.declaration.empty_rows == "any":
            empty = self.exact.empty_rows
            rows = empty if rows is None else rows | empty
        return rows if rows is not None and bool(rows.any()) else None

    @cached_property
    def judged(self) -> Tensor:
        """The elements whose golden answer is judged; the answer must fit."""
        judged = self.exact.representable
        if self._rows_open is not None:
            judged = judged & ~self._rows_open
        return judged.expand(self.output.shape)

    @cached_property
    def array(self) -> Array:
        """The output for numpy, whose calls on few numbers take a fifth of torch's time."""
        return array_of(self.output)

    @cached_property
    def _expected(self) -> Array:
        return array_of(self.exact.output)

    @cached_property
    def _error(self) -> Array:
        return self.array - self._expected

    @cached_property
    def _least(self) -> Array | None:
        least = self.exact.least_bound
        return None if least is None else array_of(least)

    @cached_property
    def _bound(self) -> Array:
        return array_of(self.exact.bound)

    @cached_property
    def margin(self) -> float:
        """The largest error in bounds; infinite for an answer of another kind.

        Another kind means another shape, or NaN and infinities in other places. Where a cheaper
        bound decides, the margin is too large for right answers and too small for gross errors.
        """
        if not self.fits:
            return math.inf
        judged = array_of(self.judged)
        with np.errstate(all="ignore"):
            if not _same_nonfinite(self.array, self._expected, judged):
                return math.inf
            # The quick part spares the bound, which is expensive.
            if self._least is not None:
                margin = _largest(self.array, self._expected, self._least, judged)
                if margin <= 1.0:
                    return margin
            margin = _largest(self.array, self._expected, self.exact.most_bound, judged)
            if margin > GROSS:
                return margin
            return _largest(self.array, self._expected, self._bound, judged)

    @cached_property
    def wrong(self) -> Tensor | None:
        """Elements outside the bound, bool of the answer's shape; None if the shape is wrong."""
        if not self.fits:
            return None
        expected = self.exact.output
        same_nan = torch.isnan(self.output) & torch.isnan(expected)
        far = ~((self.output - expected).abs() <= self.exact.bound) & ~same_nan
        return far & self.judged

    @cached_property
    def _right_rows(self) -> Tensor | None:
        return None if self.wrong is None else ~self.wrong.any(dim=-1)

    @cached_property
    def _numbers(self) -> Array:
        return np.isfinite(self._expected)

    @cached_property
    def _distance(self) -> float:
        return _size(self._error if bool(self._numbers.all()) else self._error[self._numbers])

    @cached_property
    def _all_finite(self) -> bool:
        return bool(np.isfinite(self.array).all())

    def _is_as_close(self, left: float, judged: Array | None) -> bool:
        if self._least is not None and left <= model.AS_CLOSE * self._typical(self._least, judged):
            return True
        if left > model.AS_CLOSE * self.exact.most_bound:
            return False
        return left <= model.AS_CLOSE * self._typical(self._bound, judged)

    def _typical(self, bound: Array, judged: Array | None) -> float:
        chosen = self._numbers & np.isfinite(bound)
        if judged is not None:
            chosen &= judged
        return _size(bound if bool(chosen.all()) else bound[chosen])

    def agrees(self, acted: MistakenAnswer) -> bool:
        """Whether the answer is within the bound of an acted mistake, and closer than to golden."""
        if acted.output.shape != self.output.shape:
            return False
        with torch.inference_mode(), np.errstate(all="ignore"):
            return self._soon_agrees(acted) or self._agrees(acted)

    def _soon_agrees(self, acted: MistakenAnswer) -> bool:
        """Whether the answer surely agrees, judged by the acted mistake alone.

        Errors within its bound are as small as rounding permits, whatever elements are judged.
        """
        known = self.subject.oracle.knows(self.inputs)
        if known or acted.exact is None or not (self._all_finite and acted.all_finite):
            return False
        least = acted.exact.least_bound
        return least is not None and _lies_within(self.array - acted.array, array_of(least), None)

    def _agrees(self, acted: MistakenAnswer) -> bool:
        judged = self.judged_with(acted)
        plain = self._all_finite and acted.all_finite
        if not plain:
            if not _same_nonfinite(self.array, acted.array, judged):
                return False
            finite = np.isfinite(acted.array)
            judged = finite if judged is None else judged & finite
        if judged is not None and bool(judged.all()):
            judged = None
        error = self.array - acted.array
        if not self._much_closer(acted, error, judged):
            return False
        # From cheap to expensive; the mistake's own bound where the others are too narrow.
        if self.fits:
            if self._least is not None and _lies_within(error, self._least, judged):
                return True
            largest = float(np.abs(error if judged is None else error[judged]).max(initial=0.0))
            if largest <= self.exact.most_bound and _lies_within(error, self._bound, judged):
                return True
        return _lies_within(error, array_of(acted.bound), judged)

    def judged_with(self, acted: MistakenAnswer) -> Array | None:
        """Return the elements at which a mistake is judged, None for all."""
        if not self.fits:  # rows that are open lie elsewhere, and are NaN
            return array_of(~acted.output.isnan())
        unjudged = acted.unjudged(self.subject.declaration, lambda: self._right_rows)
        if self._rows_open is not None:
            unjudged = self._rows_open if unjudged is None else unjudged | self._rows_open
        return None if unjudged is None else array_of(~unjudged.expand(self.output.shape))

    def leaves_open_alike(self, one: MistakenAnswer, other: MistakenAnswer) -> bool:
        """Whether two mistakes are judged at the same elements."""
        judged = [self.judged_with(acted) for acted in (one, other)]
        first, second = (np.True_ if some is None else some for some in judged)
        return bool(np.all(first == second))

    def _much_closer(self, acted: MistakenAnswer, error: Array, judged: Array | None) -> bool:
        """Whether a mistake is much closer than golden, or as close as rounding permits.

        ``judged`` are the elements that count, None for all.
        """
        if not self.fits:
            return True
        if judged is None:
            left, distance = _size(error), self._distance
        else:
            left, distance = _size(error[judged]), _size(self._error[judged & self._numbers])
        if left <= model.MUCH_CLOSER * distance or self._is_as_close(left, judged):
            return True
        if acted.stepwise:
            return False
        # The golden answer may be exact where that of the mistake is rounded.
        if acted.exact is not None and left > model.AS_CLOSE * acted.exact.most_bound:
            return False
        bound = array_of(acted.bound)
        return left <= model.AS_CLOSE * _size(bound if judged is None else bound[judged])

    def leaves_little(self, acted: MistakenAnswer) -> bool:
        """Whether a mistake surely leaves next to nothing of the error of each wrong element.

        The squares of the errors are then small in any unit. :meth:`closeness` says more, but needs
        the bound, which is expensive.
        """
        if not self.fits:
            return True
        plain = self._all_finite and acted.all_finite and bool(self._numbers.all())
        if self._least is None or not plain or acted.output.shape != self.output.shape:
            return False
        with np.errstate(all="ignore"):
            left, error = np.abs(self.array - acted.array), np.abs(self._error)
        small = left <= model.LARGEST_UNEXPLAINED**0.5 * error
        return bool((small | (error <= self._least)).all())

    @torch.inference_mode()
    def closeness(self, acted: MistakenAnswer) -> tuple[float, float, float]:
        """Return the squared error of wrong elements that a mistake leaves, the total, a count.

        Errors are in units of the bound of the declared point; an answer of another shape leaves
        nothing of a total of one. Elements at which the mistake is not judged do not count; the
        count is the number of judged wrong elements less the number of unjudged wrong elements.
        """
        if self.wrong is None:
            return 0.0, 1.0, 1.0
        exact = self.exact
        chosen = self.wrong & torch.isfinite(self.output) & torch.isfinite(exact.output)
        unexpected = float((self.wrong & ~chosen).any())
        if acted.output.shape != self.output.shape or not bool(chosen.any()):
            return 0.0, unexpected, unexpected
        judged = self.judged_with(acted)
        counted = chosen if judged is None else chosen & torch.from_numpy(judged)
        unit = exact.bound[counted].clamp_min(model.LOST_WEIGHT)
        left = ((self.output - acted.output)[counted] / unit).square().sum()
        total = ((self.output - exact.output)[counted] / unit).square().sum()
        more = 2.0 * float(counted.sum()) - float(chosen.sum())
        return float(left), float(total) + unexpected, more + unexpected


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of an answer by what they agree with; bool ``[B, H, Lq]``, for a layer ``[B, L]``."""

    made: Tensor
    spared: Tensor
    unexplained: Tensor
    # Right rows of a call where the mistake is impossible, such as a non-square transpose.
    unable: Tensor | None = None


class RowComparison:
    """Compares the rows of answers with golden and mistaken answers, each once."""

    def __init__(self, subject: Subject, acted: ActedAnswers) -> None:
        self.subject = subject
        self.acted = acted
        # Mistakes are kept with their results, so that no identity is reused.
        self._agreeing: dict[tuple[int, BatteryAnswer], tuple[NamedMistake, Rows | None]] = {}
        self._judged: dict[BatteryAnswer, tuple[Tensor, Tensor]] = {}

    def rows(self, mistake: NamedMistake, answer: BatteryAnswer) -> Rows | None:
        """Return the comparison of each row of an answer; None for an answer of another shape."""
        key = id(mistake), answer
        if key not in self._agreeing:
            self._agreeing[key] = mistake, self._compared(mistake, answer)
        return self._agreeing[key][-1]

    @torch.inference_mode()
    def _compared(self, mistake: NamedMistake, answer: BatteryAnswer) -> Rows | None:
        if not answer.fits:
            return self._compare_other_shape(mistake, answer)
        right, judged = self._right_and_judged(answer)
        none = torch.zeros_like(right)
        without = Rows(made=none, spared=none, unexplained=judged & ~right)
        if not self.acted.touches(mistake, answer.inputs):
            return without
        try:
            acted = self.acted.answer(mistake, answer.inputs)
        except NotExpressible:
            return replace(without, unable=judged & right)
        if acted.output.shape != answer.output.shape:
            return replace(without, unable=judged & right)
        if torch.equal(acted.output, answer.exact.output):
            return without
        unjudged = acted.unjudged(self.subject.declaration, lambda: right)
        if unjudged is not None:
            judged = judged & ~unjudged.expand(answer.output.shape).any(dim=-1)
        return _rows(answer, acted, right, judged)

    def _compare_other_shape(self, mistake: NamedMistake, answer: BatteryAnswer) -> Rows | None:
        if not self.acted.touches(mistake, answer.inputs):
            return None
        try:
            agrees = answer.agrees(self.acted.answer(mistake, answer.inputs))
        except NotExpressible:
            return None
        every = torch.ones(answer.exact.output.shape[:-1], dtype=torch.bool)
        return Rows(made=every, spared=~every, unexplained=~every) if agrees else None

    def _right_and_judged(self, answer: BatteryAnswer) -> tuple[Tensor, Tensor]:
        if answer not in self._judged:
            exact, judged = answer.exact, answer.judged.all(dim=-1)
            right = torch.ones_like(judged)  # rows that are not judged do not count
            if answer.margin > 1.0:  # a small margin makes the bound needless
                right = within(answer.output, exact.output, exact.bound).all(dim=-1)
            self._judged[answer] = right, judged
        return self._judged[answer]


def _rows(answer: BatteryAnswer, acted: MistakenAnswer, right: Tensor, judged: Tensor) -> Rows:
    exact, wrong = answer.exact, judged & ~right
    mistaken = _close(answer, acted, exact, judged)
    if not bool(wrong.any()):
        return Rows(made=wrong, spared=judged & ~mistaken, unexplained=wrong)
    left = wrong & ~mistaken
    if bool(left.any()) and acted.exact is not None:
        mistaken = mistaken | _close(answer, acted, acted.exact, left)
    elif bool(left.any()):
        mistaken = mistaken | within(answer.output, acted.output, acted.bound).all(dim=-1)
    spared = judged & right & ~mistaken
    closer = mistaken & _much_closer(answer.output, acted, exact.output, exact.bound)
    return Rows(made=wrong & mistaken, spared=spared, unexplained=wrong & ~closer)


def _close(answer: BatteryAnswer, acted: MistakenAnswer, exact: Golden, rows: Tensor) -> Tensor:
    """Return the rows within the bound of ``exact`` around an acted answer.

    If none of ``rows`` can be, return no row: that spares the bound, which is expensive.
    """
    far = ((answer.output - acted.output).abs() > exact.most_bound).any(dim=-1)
    if not bool((rows & ~far).any()):
        return torch.zeros_like(far)
    return within(answer.output, acted.output, exact.bound).all(dim=-1)


def _much_closer(output: Tensor, acted: MistakenAnswer, expected: Tensor, bound: Tensor) -> Tensor:
    """Return rows much closer to the mistake than to golden, or as close as rounding permits.

    Rows that are not finite count as both.
    """
    left = torch.nan_to_num((output - acted.output).abs()).amax(dim=-1)
    before = (output - expected).abs().amax(dim=-1)
    rounding = torch.nan_to_num(bound.expand_as(output)).amax(dim=-1)
    return ~((left > model.MUCH_CLOSER * before) & (left > model.AS_CLOSE * rounding))


class NoDifferentiator(Differentiator):
    """A differentiator that refuses: an acted answer has no history."""

    def tape(self, inputs: Inputs, **_options: object) -> Taped:
        """Raise LookupError, which speaks against no mistake."""
        del inputs
        msg = "an acted mistake has no gradients"
        raise LookupError(msg)


class StandIn(Subject):
    """A subject that answers as a candidate with given mistakes, rounded to the query's dtype."""

    only_violations = True

    def __init__(self, subject: Subject, acting: Callable[[Inputs], MistakenAnswer]) -> None:
        super().__init__(subject.candidate, subject.dtype, sealed=subject.sealed)
        self.oracle = subject.oracle
        self.inputs = subject.inputs
        self.gradients = NoDifferentiator(self)
        self.acting = acting
        self.is_open = False

    def forward(self, inputs: Inputs) -> Forward:
        """Return a function that is never called: the answer follows from the inputs alone."""
        del inputs
        return lambda: None

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """Return the acted answer; raise CandidateFailure for a wrong shape."""
        del forward, call_arguments
        acted = self.acting(inputs)
        self.is_open |= acted.empties_rows(self.declaration.semantics)
        output: Tensor = acted.output.to(inputs.query.dtype)
        if output.shape != inputs.output_shape:
            message = f"the output has shape {list(output.shape)}"
            raise CandidateFailure(Violation(kind="shape", message=message))
        weights = acted.weights.to(inputs.query.dtype) if inputs.return_weights else None
        return Answer(output=output, returned=output, weights=weights)


def fails_alike(
    subject: Subject, made: Combination, clause: Clause, problem: Problem
) -> bool | None:
    """Whether a candidate with the mistakes fails a clause on a problem."""
    acting = partial(act, subject.oracle, subject.declaration.semantics, made)
    return fails_so(subject, acting, clause, problem)


def fails_so(
    subject: Subject,
    acting: Callable[[Inputs], MistakenAnswer],
    clause: Clause,
    problem: Problem,
) -> bool | None:
    """Whether a candidate that answers as ``acting`` fails a clause on a problem.

    None if undecided: the mistakes cannot be acted out on what the clause needs, or leave rows
    without keys, whose answer is open.
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
    """Return the elements that lie within a bound or equal the same NaN or infinity."""
    same = (torch.isnan(actual) & torch.isnan(expected)) | (actual == expected)
    return same | ((actual - expected).abs() <= bound)


def _lies_within(error: Array, bound: Array, judged: Array | None) -> bool:
    inside = (np.abs(error) <= bound) | (error == 0.0)
    return bool((inside if judged is None else inside | ~judged).all())


def _largest(actual: Array, expected: Array, bound: Array | float, judged: Array) -> float:
    """Return the largest judged error in bounds; infinite where a number is expected and missing.

    A bound that is NaN allows nothing.
    """
    judged = judged & np.isfinite(expected)
    if bool((judged & ~np.isfinite(actual)).any()):
        return math.inf
    error = np.abs(actual - expected)
    ratio = np.where(judged & (error != 0.0), error / bound, 0.0)
    ratio[np.isnan(ratio)] = math.inf
    return float(ratio.max()) if ratio.size else 0.0


def _same_nonfinite(actual: Array, expected: Array, judged: Array | None) -> bool:
    if bool(np.isfinite(actual).all()) and bool(np.isfinite(expected).all()):
        return True
    same = np.isnan(actual) == np.isnan(expected)
    for infinite in (math.inf, -math.inf):
        same = same & ((actual == infinite) == (expected == infinite))
    return bool((same if judged is None else same | ~judged).all())


def _size(errors: Array) -> float:
    """Return the root mean square; infinite if an error is NaN."""
    if not errors.size:
        return 0.0
    numbers = errors.ravel()
    size = math.sqrt(float(numbers @ numbers) / numbers.size)
    return math.inf if math.isnan(size) else size
