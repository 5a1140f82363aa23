from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from examples import CLAUSES, bare, core, problem
from torch import Tensor

from conformance._golden import golden
from conformance.base.results import Violation
from conformance.clauses.registry import Finding
from conformance.clauses.subject import Subject
from conformance.problems.problem import Problem
from conformance.running.shrinking.smallest import (
    Control,
    examine,
    same_but_for_numbers,
    same_failure,
    shows,
    smallest_failure,
)

TRIES = 120
ROTARY = golden.Semantics(rotary="halves")
NO_PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A core without the scale."""
    return torch.softmax(query @ key.transpose(-1, -2), dim=-1) @ value


def violation_of(function: Any, slug: str, example: Problem) -> tuple[Subject, Violation]:
    """How an example breaks a clause."""
    subject = Subject(core(function, **NO_PROMISES), "float32")
    result = examine(CLAUSES[slug], subject, example).violation
    assert result is not None
    return subject, result


def test_wrong_scale_ends_at_two_keys_of_two_channels() -> None:
    """The least that shows a scale, in integers."""
    example = problem()
    subject, violation = violation_of(unscaled, "numerics.scale", example)
    result = smallest_failure(CLAUSES["numerics.scale"], subject, example, violation, tries=TRIES)
    inputs = subject.inputs(result.problem)
    assert inputs.query.numel() + inputs.key.numel() + inputs.value.numel() == 8
    for tensor in (inputs.query, inputs.key, inputs.value):
        assert torch.equal(tensor, tensor.round())
    assert result.repeated
    assert len(result.recording.calls) == 1
    assert result.tries <= TRIES


def test_failure_that_does_not_repeat_keeps_its_problem() -> None:
    """Nothing smaller is claimed of a failure that does not occur again."""
    example = problem()
    subject = Subject(core(bare, **NO_PROMISES), "float32")
    violation = Violation(kind="value", message="once")
    result = smallest_failure(CLAUSES["numerics.golden"], subject, example, violation, tries=TRIES)
    assert (result.problem, result.violation, result.repeated) == (example, violation, False)
    assert result.recording.calls == []


def test_reduction_does_not_slip_to_another_exception() -> None:
    """A line that raises for single keys is not what raised for many."""

    def two_bugs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        many, few = "three keys are too many", "one key is too few"
        if key.shape[-2] >= 3:
            raise RuntimeError(many)
        if key.shape[-2] == 1:
            raise RuntimeError(few)
        return bare(query, key, value)

    example = problem()
    subject, violation = violation_of(two_bugs, "shape.output", example)
    result = smallest_failure(CLAUSES["shape.output"], subject, example, violation, tries=TRIES)
    assert result.problem.geometry.key_length == 3
    assert "three keys" in result.violation.message


def test_example_that_the_golden_fails_does_not_count() -> None:
    """Where a check breaks down for everybody, nothing is shown about the candidate."""
    golden_clause = CLAUSES["numerics.golden"]

    def breaks_down_at_zero(subject: Subject, example: Problem) -> Finding:
        finding = golden_clause.check(subject, example)
        if finding.violation is None and bool((subject.inputs(example).value == 0.0).any()):
            wrong = Violation(kind="value", message="the answer is not softmax(scale Q K^T) V")
            return Finding(violation=wrong)
        return finding

    clause = dataclasses.replace(golden_clause, check=breaks_down_at_zero)
    example = problem(batch=1, num_heads=1, num_kv_heads=1)
    subject, violation = violation_of(unscaled, "numerics.golden", example)
    result = smallest_failure(clause, subject, example, violation, tries=TRIES)
    values = subject.inputs(result.problem).value
    assert not bool((values == 0.0).any())
    assert examine(clause, Control(subject), result.problem).violation is None


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        ("junk at query 0: 1.5", "junk at query 3: -2e-08", True),
        ("logits near 1e+03 give a wrong answer", "logits near 1e+05 give a wrong answer", True),
        ("the mask as keep and as drop differ", "the mask as keep and as bias differ", False),
    ],
)
def test_numbers_do_not_tell_failures_apart(first: str, other: str, same: bool) -> None:  # noqa: FBT001
    """What is said counts, and neither where nor how much."""
    violations = [Violation(kind="value", message=text) for text in (first, other)]
    assert same_but_for_numbers(*violations) is same


def test_gross_error_stays_gross() -> None:
    """A violation of thousands of bounds is not explained by one near its bound."""
    far, near = (
        Violation(kind="value", message="wrong", measured={"margin": margin})
        for margin in (1e4, 1.5)
    )
    assert not same_failure(far, near)
    assert same_failure(near, far)
    assert same_but_for_numbers(far, near)


def test_values_go_on_to_show_an_error() -> None:
    """Queries in the slowest channels of a rotation would differ in their later digits alone."""

    def from_the_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries are turned as if they stood at the first keys."""
        positions = torch.arange(key.shape[2])
        query = golden.rotate_heads(query.double(), positions[: query.shape[2]], ROTARY)
        key = golden.rotate_heads(key.double(), positions, ROTARY)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return (torch.softmax(scores, dim=-1) @ value.double()).float()

    example = problem(query_length=1, key_length=2, head_size=8, value_head_size=1)
    candidate = core(from_the_first, semantics=ROTARY, geometry={"head_size": 8}, **NO_PROMISES)
    subject = Subject(candidate, "float32")
    violation = examine(CLAUSES["numerics.golden"], subject, example).violation
    assert violation is not None
    assert shows(violation)
    found = smallest_failure(
        CLAUSES["numerics.golden"], subject, example, violation, tries=TRIES
    ).violation
    assert shows(found)
    assert not shows(dataclasses.replace(found, got=found.expected + 8.8e-5))
