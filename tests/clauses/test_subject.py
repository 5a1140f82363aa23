from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import SMALL, core, layer, problem, try_on
from torch import Tensor

import conformance
from conformance.clauses.registry import all_clauses
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.oracle.comparison import compare
from conformance.running.runner import CandidateRun

WIDTH, HEADS = 8, 2
WIDTHS = {"query_size": WIDTH, "key_size": WIDTH, "value_size": WIDTH, "output_size": WIDTH}
# What a plain masked softmax does not promise: 0 * NaN is NaN.
SHOULD = ("mask.no-leak-nonfinite",)
GENERATOR = torch.Generator().manual_seed(1)
MATRICES = [torch.randn(WIDTH, WIDTH, generator=GENERATOR) / math.sqrt(WIDTH) for _ in range(4)]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None = None,
    *,
    axis: int = -1,
    empty: float = 0.0,
) -> Tensor:
    """A layer whose weights are not declared."""

    def heads(tokens: Tensor, matrix: Tensor) -> Tensor:
        return (tokens @ matrix.to(tokens).T).unflatten(-1, (HEADS, -1)).transpose(1, 2)

    q, k, v = (heads(t, m) for t, m in zip((query, key, value), MATRICES, strict=False))
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if keep is not None:
        logits = logits.masked_fill(~keep, -math.inf)
    weights = logits.softmax(axis)
    if keep is not None:
        weights = torch.where(keep.any(-1, keepdim=True), weights, empty)
    return (weights @ v).transpose(1, 2).flatten(2) @ MATRICES[3].to(query).T


def over_queries(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """Softmax over the queries."""
    return attention(query, key, value, keep, axis=-2)


def with_nan_rows(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """Rows without keys are NaN, as a plain softmax makes them."""
    return attention(query, key, value, keep, empty=math.nan)


def not_a_number(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """Nothing but NaN."""
    return attention(query, key, value, keep) * math.nan


def mean_of_batch(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    """Items of a batch leak into each other."""
    output = attention(query, key, value, keep)
    return output + 0.1 * output.mean(0, keepdim=True)


def unknown(forward: Callable[..., Tensor], **promises: Any) -> Candidate:
    """A fixed layer of unknown weights."""
    return conformance.fixed_layer(
        forward, None, num_heads=HEADS, masks=["keep"], geometry=WIDTHS, **promises
    )


def statuses(candidate: Candidate) -> dict[str, str]:
    """The status of every clause."""
    run = CandidateRun(candidate, profile=SMALL)
    return {planned.id: run.run(planned).status for planned in run.planned()}


@pytest.fixture(scope="module")
def of_correct() -> dict[str, str]:
    """The statuses of the correct layer."""
    return statuses(unknown(attention))


def test_correct_layer_of_unknown_weights_passes(of_correct: dict[str, str]) -> None:
    """Clauses that need no golden answer pass for a correct layer of unknown weights."""
    others = {slug: status for slug, status in of_correct.items() if slug not in SHOULD}
    assert set(others.values()) == {"passed", "not-applicable"}
    passed = {slug for slug, status in of_correct.items() if status == "passed"}
    assert passed >= {
        "equivariance.queries",
        "equivariance.keys",
        "mask.all-keep",
        "mask.no-leak",
        "mask.padding-is-absence",
        "mask.per-item",
        "numerics.constant-value",
        "numerics.key-shift",
        "numerics.value-linear",
        "shape.output",
        "state.no-memory",
    }


def test_clauses_that_need_a_golden_answer_say_so(of_correct: dict[str, str]) -> None:
    """No golden answer exists without weights: those clauses are not applicable."""
    needing = {clause.id for clause in all_clauses() if clause.needs_golden}
    assert {of_correct[slug] for slug in needing} == {"not-applicable"}
    run = CandidateRun(unknown(attention), profile=SMALL, only=("numerics.golden",))
    assert run.planned()[0].reason == "the weights are unknown, so there is no golden answer"


def test_nan_rows_do_not_blind_the_measured_bound() -> None:
    """NaN in rows without keys neither fails nor stops the clauses about the other rows."""
    of_clauses = statuses(unknown(with_nan_rows, empty_rows="nan", causal=None))
    assert {of_clauses[slug] for slug in of_clauses if slug not in SHOULD} == {
        "passed",
        "not-applicable",
    }


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (over_queries, "numerics.constant-value"),
        (not_a_number, "equivariance.queries"),
        (not_a_number, "state.repeatable"),
        (not_a_number, "numerics.value-linear"),
        (not_a_number, "mask.no-leak"),
        (mean_of_batch, "equivariance.batch-independent"),
    ],
)
def test_broken_layer_of_unknown_weights_fails(broken: Callable[..., Tensor], clause: str) -> None:
    """Without a golden answer the laws still find a mistake, NaN everywhere included."""
    run = CandidateRun(unknown(broken), profile=SMALL, only=(clause,))
    assert run.run(run.planned()[0]).status == "failed"


def test_measured_bound_is_narrow() -> None:
    """The spread under one-unit changes allows thousands of units, not a percent."""
    candidate = unknown(attention)
    subject = Subject(candidate, "float32")
    example = problem(num_heads=2, num_kv_heads=2, head_size=4, value_head_size=4, **WIDTHS)
    golden_output, bound, judged = subject.frame(subject.inputs(example))
    answer = subject.answer(subject.inputs(example))
    assert golden_output is None
    assert bool(judged.all())
    assert float(bound.max()) < 1e-4 * float(answer.abs().max())


def test_inputs_are_made_once() -> None:
    """The tensors of a problem, and so its golden answer, are remembered."""
    subject = Subject(core(), "float32")
    inputs = subject.inputs(problem())
    assert subject.inputs(problem()) is inputs
    assert subject.golden(inputs) is subject.golden(inputs)


def test_clock_counts_the_candidate() -> None:
    """Time spent in the candidate is counted apart."""
    subject = Subject(layer(), "float32")
    assert subject.candidate_seconds == 0.0
    subject.answer(subject.inputs(problem()))
    assert subject.candidate_seconds > 0.0


def test_frame_of_a_layer_with_weights_is_the_golden() -> None:
    """With weights the golden answer and its derived bound are used."""
    subject = Subject(layer(), "float32")
    inputs = subject.inputs(problem())
    golden_output, bound, judged = subject.frame(inputs)
    assert golden_output is not None
    agreement = compare(subject.answer(inputs), golden_output, bound, judged=judged)
    assert agreement.violation is None
    assert 0.0 < agreement.margin <= 1.0


def test_law_between_two_nan_answers_fails() -> None:
    """Two answers of NaN do not agree: neither is an answer."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.transpose(-1, -2)) @ value * math.nan

    finding = try_on(
        core(kernel, masks=[], causal=None, features=[]), "state.repeatable", problem()
    )
    assert finding.violation is not None
    assert finding.violation.kind == "finite"


def test_nan_in_the_first_answer_alone_fails() -> None:
    """A law fails when only the first of its two answers is not finite."""
    calls: list[int] = []

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(1)
        output = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(3), -1) @ value
        return output * math.nan if len(calls) == 1 else output

    finding = try_on(
        core(kernel, masks=[], causal=None, features=[]), "state.repeatable", problem()
    )
    assert finding.violation is not None
    assert finding.violation.kind == "finite"
