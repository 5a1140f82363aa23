"""Reduce a failing example to the smallest example with the same failure.

Reduction leaves the distribution of drawn values: a zero may make a check divide by zero. A smaller
problem counts only if the golden, in the candidate's place, passes the check.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._golden import golden
from ...base.patience import fair_clock
from ...base.results import ClauseResult, Violation
from ...calls.calling import (
    Answer,
    Arguments,
    CandidateFailure,
    Forward,
    RowWithoutKeysRefused,
    StridesRefused,
    read_answer,
)
from ...calls.differentiating import Gradients, NotDifferentiable, Taped
from ...calls.recording import Recording
from ...clauses.registry import Clause, Finding
from ...clauses.subject import Differentiator, Subject
from ...oracle.comparison import GROSS, MOST_ELEMENTS
from ...oracle.gradient_oracle import separate_cache
from ...oracle.oracle import Golden
from ...problems.inputs import Inputs
from ...problems.materialise import changeable
from ...problems.problem import Overrides, Problem
from .reduction import reduce_problem


class NoControlError(Exception):
    """The golden cannot replace the candidate: unknown weights or an unanswerable call."""


class GoldenDifferentiator(Differentiator):
    """Rounded gradients of the golden; no calls are recorded."""

    def of(self, inputs: Inputs, upstream: Tensor) -> Gradients:
        """The golden gradients."""
        subject = self.subject
        if not subject.candidate.golden_known:
            raise NoControlError
        gradients = separate_cache(self.oracle.answer(inputs, upstream).gradients, inputs)
        dtype = inputs.query.dtype
        return Gradients(
            by_name={name: each.value.to(dtype) for name, each in gradients.items()},
            missing=frozenset(),
            output=subject.golden(inputs).output.to(dtype),
        )

    def tape(self, inputs: Inputs, **_options: object) -> Taped:
        """Nothing is recorded."""
        del inputs
        raise NoControlError


class Control(Subject):
    """A subject that answers with the golden, rounded to the dtype of the query."""

    only_violations = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.candidate, subject.dtype, subject.device, sealed=subject.sealed)
        self.oracle = subject.oracle
        self.gradients = GoldenDifferentiator(self)
        self.gradients.oracle = subject.gradients.oracle
        self.inputs = subject.inputs

    def forward(self, inputs: Inputs) -> Forward:
        """No layer is built: the answer follows from the inputs alone."""
        del inputs
        return _not_called

    def call_with(self, forward: Forward, call_arguments: Arguments, inputs: Inputs) -> Answer:
        """Return the golden answer; raises CandidateFailure for inputs that do not fit together."""
        del forward, call_arguments
        if self.candidate.kind == "positions":
            return _answer(_encoded(inputs), None, inputs)
        if not self.candidate.golden_known:
            raise NoControlError
        try:
            expected = self.golden(inputs)
        except (ValueError, RuntimeError, IndexError) as error:
            refused = Violation(kind="raised", message=str(error), got=type(error).__name__)
            raise CandidateFailure(refused) from error
        output = expected.output if inputs.dropout is None else _dropped(expected, inputs)
        return _answer(output, expected.weights, inputs)


def _not_called() -> None:
    """Placeholder for a layer; never called."""


def _answer(output: Tensor, weights: Tensor | None, inputs: Inputs) -> Answer:
    """Read a golden output as if the candidate had returned it, on the CPU."""
    inputs = inputs.replace(device="cpu")
    tensors = [output] if weights is None else [output, weights]
    returned = [tensor.to(inputs.query.dtype) for tensor in tensors]
    if not inputs.batched:
        returned = [tensor.squeeze(0) for tensor in returned]
    return read_answer(tuple(returned) if inputs.return_weights else returned[0], inputs)


def _encoded(inputs: Inputs) -> Tensor:
    tokens = inputs.key.double()
    table = golden.sinusoidal_positions(tokens.shape[-2], tokens.shape[-1])
    return (tokens + table).to(inputs.key.dtype)


def _dropped(golden_answer: Golden, inputs: Inputs) -> Tensor:
    """Return the output of a core with weights dropped at random."""
    if inputs.is_layer or inputs.dropout is None:
        raise NoControlError
    kept = torch.rand(golden_answer.weights.shape) >= inputs.dropout
    heads = golden_answer.core.value
    value = heads.repeat_interleave(golden_answer.weights.shape[1] // heads.shape[1], dim=1)
    return golden_answer.weights * kept / (1.0 - inputs.dropout) @ value


LARGEST_INTEGER = 3
# The part of a number that its second digit and later ones make, at most.
LATER_DIGITS = 0.1
# The mask of kept keys: hiding more keys would leave rows without any.
KEPT = "keep"
Values = tuple[float, ...]


def simplify_values(
    problem: Problem,
    drawn: dict[str, Values],
    still_fails: Callable[[Problem], bool],
    *,
    tries: int,
) -> tuple[Problem, int]:
    """Return the problem with the plainest values that still fail, and the number of tries.

    ``drawn`` holds the replaceable tensors in row-major order. More than 64 elements are left
    alone: nobody reads them one by one.
    """
    if sum(map(len, drawn.values())) > MOST_ELEMENTS:
        return problem, 0
    search = _ValueSearch(problem, drawn, still_fails, tries)
    for name, values in drawn.items():
        search.take_first(name, _plainer_wholes(name, values))
    for name, values in drawn.items():
        for place in range(len(values)):
            search.take_first(name, _plainer_at(name, search.values[name], place))
    return search.best, search.used


class _ValueSearch:
    def __init__(
        self,
        problem: Problem,
        drawn: dict[str, Values],
        still_fails: Callable[[Problem], bool],
        tries: int,
    ) -> None:
        self.best = problem
        self.values = dict(drawn)
        self.used = 0
        self._still_fails = still_fails
        self._tries = tries

    def take_first(self, name: str, proposals: Iterator[Values]) -> None:
        """Continue with the first proposal for a tensor on which the problem fails."""
        overrides = self.best.overrides or Overrides(seed=self.best.seed)
        for values in proposals:
            if values == self.values[name]:
                return  # what follows is less plain than what there is
            if self.used >= self._tries:
                return
            self.used += 1
            plainer = self.best.replace(overrides=overrides.replace(name, values))
            if self._still_fails(plainer):
                self.best = plainer
                self.values[name] = values
                return


def _plainer_wholes(name: str, values: Values) -> Iterator[Values]:
    if name != KEPT:
        yield (0.0,) * len(values)
    yield (1.0,) * len(values)
    if not all(value == round_small(value) for value in values):
        yield tuple(map(round_small, values))


def _plainer_at(name: str, values: Values, place: int) -> Iterator[Values]:
    """Yield the tensor with one element made 0, 1 or small; a mask keeps one more key."""
    for plain in (0.0, 1.0, round_small(values[place])) if name != KEPT else (1.0,):
        yield (*values[:place], plain, *values[place + 1 :])


def round_small(value: float) -> float:
    """Round to the nearest integer of at most three in size; infinities and NaN stay."""
    if not math.isfinite(value):
        return value
    return float(max(-LARGEST_INTEGER, min(LARGEST_INTEGER, round(value))))


# The share of a reduction's tries kept for plainer numbers.
SHARE_OF_VALUES = 0.3
_NUMBER = re.compile(r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan)", re.IGNORECASE)
_PLACE = re.compile(r"\([^()]*:\d+\)")

OnExample = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest problem found, its violation and recorded calls, and the number of tries.

    ``repeated``: whether the failure occurred again; if not, no calls are recorded.
    """

    problem: Problem
    violation: Violation
    recording: Recording
    tries: int
    repeated: bool


def examine(clause: Clause, subject: Subject, problem: Problem) -> Finding:
    """Examine one example of a clause; exceptions and wrong answers are violations."""
    try:
        return clause.check(subject, problem)
    except RowWithoutKeysRefused:
        return Finding(binding=False, refused=True)
    except StridesRefused:
        return Finding()  # loudly, which is what it declares to do
    except NotDifferentiable as error:
        return Finding(inapplicable=str(error))
    except CandidateFailure as failure:
        return Finding(violation=failure.violation)


def examine_recorded(
    clause: Clause, subject: Subject, problem: Problem, into: Recording | None = None
) -> tuple[Finding, Recording]:
    """Examine one example of a clause and record its calls, in ``into`` if given."""
    recording = Recording() if into is None else into
    with subject.recorded(recording):
        return examine(clause, subject, problem), recording


def smallest_failure(
    clause: Clause,
    subject: Subject,
    problem: Problem,
    violation: Violation,
    *,
    tries: int,
    reduced_problems: Iterable[Problem] = (),
    on_example: OnExample | None = None,
    until: float | None = None,
) -> Smallest:
    """Return the smallest problem with the same failure; ``problem`` if the failure does not recur.

    The same failure: equal kind of violation, equal message apart from numbers, equal raising line,
    still far beyond the bound if ``violation`` was, and a golden that passes. Values are made
    plainer, too. After ``until`` on the thread's fair clock the search ends.
    """
    control = Control(subject)
    controlled = _passes(clause, control, problem)
    latest = violation

    def still_shows(plainer: Problem) -> bool:
        return still_fails(plainer, showing=shows(latest))

    def still_fails(smaller: Problem, *, showing: bool = False) -> bool:
        nonlocal latest
        if until is not None and fair_clock() >= until:
            return False
        if on_example is not None:
            on_example(smaller.as_json())
        with subject.looking_for_violations():
            smaller_violation = examine(clause, subject, smaller).violation
        if smaller_violation is None or not same_failure(violation, smaller_violation):
            return False
        hidden = showing and not shows(smaller_violation)
        if hidden or (controlled and not _passes(clause, control, smaller)):
            return False
        latest = smaller_violation
        return True

    for_values = int(tries * SHARE_OF_VALUES)
    reduced, used = reduce_problem(
        problem,
        subject.candidate,
        clause.space,
        still_fails,
        tries=tries - for_values,
        reduced_problems=reduced_problems,
    )
    plain, more = reduced, 0
    if controlled:  # numbers of nobody's making may be what fails
        drawn = drawn_values(subject, reduced)
        plain, more = simplify_values(reduced, drawn, still_shows, tries=tries - used)
    for final in dict.fromkeys((plain, problem)):
        finding, recording = examine_recorded(clause, subject, final)
        if finding.violation is not None:
            return Smallest(
                problem=final,
                violation=finding.violation,
                recording=recording,
                tries=used + more,
                repeated=True,
            )
    return Smallest(
        problem=problem,
        violation=violation,
        recording=Recording(),
        tries=used + more,
        repeated=False,
    )


def _passes(clause: Clause, control: Control, problem: Problem) -> bool:
    """Tell whether the golden passes the clause; False if it cannot replace the candidate."""
    try:
        return examine(clause, control, problem).violation is None
    except NoControlError:
        return False


def drawn_values(subject: Subject, problem: Problem) -> dict[str, tuple[float, ...]]:
    """The values of the tensors that a problem of this candidate may override."""
    tensors = changeable(subject.inputs(problem), weights=subject.candidate.draws_weights)
    return {
        name: tuple(float(value) for value in tensor.flatten().tolist())
        for name, tensor in tensors.items()
    }


def same_failure(first: Violation, other: Violation) -> bool:
    """Whether a violation agrees with the first, and is as far beyond its bound."""
    return same_but_for_numbers(first, other) and (_gross(other) or not _gross(first))


def same_but_for_numbers(first: Violation, other: Violation) -> bool:
    """Compare kind and message of two violations of a clause, ignoring numbers."""
    return (first.kind, _leave_numbers_out(first)) == (other.kind, _leave_numbers_out(other))


def _leave_numbers_out(violation: Violation) -> str:
    """Return a violation's text without numbers; for an exception its type and raising line."""
    if violation.kind == "raised":
        place = _PLACE.search(violation.message)
        return f"{violation.got} {place.group() if place else ''}"
    sentence, _, _ = violation.message.partition(" at ")
    return _NUMBER.sub("#", sentence)


def _gross(violation: Violation) -> bool:
    margin = violation.measured.get("margin")
    return margin is None or float(margin) >= GROSS


def shows(violation: Violation) -> bool:
    """Whether two numbers differ at a glance, not in their later digits alone."""
    numbers = violation.expected, violation.got
    if not all(isinstance(number, float) for number in numbers):
        return True
    expected, got = numbers
    return not abs(got - expected) < LATER_DIGITS * max(abs(got), abs(expected))


def copy_scale_error(reduced: Violation, first: Violation) -> Violation:
    """Copy the first violation's scale error to the reduced one: few elements fit any scale."""
    fitted = first.measured.get("scale_error")
    if fitted is None or "scale_error" in reduced.measured:
        return reduced
    scale_sentence = f"; the unreduced example fits a scale with a relative error of {fitted:+.3g}"
    return replace(
        reduced,
        message=reduced.message + scale_sentence,
        measured={**reduced.measured, "scale_error": fitted},
    )


@dataclass(frozen=True)
class Failure:
    """A failing problem of a clause, and the result without it."""

    clause: Clause
    subject: Subject
    problem: Problem
    violation: Violation
    result: ClauseResult

    def fails(self, asked: Subject) -> bool:
        """Whether a subject fails the problem."""
        return examine(self.clause, asked, self.problem).violation is not None
