"""A slow candidate's mistake is named, and its failing problem made small, by few calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

import conformance
from conformance.base.profile import PROFILES
from conformance.declare.candidate import Candidate
from conformance.diagnosis.mistakes import named_mistakes
from conformance.running.clause_run import ClauseRun
from conformance.running.few_calls import CONFIRMING, MOST_TELLING, FewCalls
from conformance.running.runner import CandidateRun


def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """Attention whose mask hides what it should keep."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(keep, -torch.inf)
    answer: Tensor = scores.softmax(-1).nan_to_num(0.0) @ value
    return answer


def slow_run(candidate: Candidate, *, explain: bool = True) -> CandidateRun:
    """A run that takes a candidate for a slow one."""
    run = CandidateRun(candidate, profile=PROFILES["quick"], explain=explain)
    run.call_seconds = 0.5
    return run


def counted() -> tuple[Candidate, list[int]]:
    """The wrong core, and a list that grows with its calls."""
    declared: Candidate = conformance.core(masks=["keep"], empty_rows="any")(attend)
    calls: list[int] = []

    def call(*given: Any, **keywords: Any) -> Tensor:
        calls.append(len(calls))
        return attend(*given, **keywords)

    return dataclasses.replace(declared, function=call), calls


def test_a_mistake_is_named_by_the_answers_that_there_are() -> None:
    """The failure has a name and a small problem after a few calls more than it took to find."""
    candidate, calls = counted()
    run = slow_run(candidate)
    planned = next(one for one in run.planned() if one.id == "mask.golden")
    found: list[int] = []

    def on_failure(_failure: object) -> None:
        found.append(len(calls))

    result = run.run(planned, clause_run=ClauseRun(on_failure=on_failure))
    assert [entry["name"] for entry in result.diagnosis] == ["mask-inverted"]
    assert len(calls) - found[0] <= MOST_TELLING + CONFIRMING + 2
    assert result.counterexample is not None
    assert result.counterexample["problem"]["geometry"]["key_length"] <= 3


def test_any_answer_serves_a_clause_that_speaks_of_every_answer() -> None:
    """The shape of an answer is judged without a call where the answer is there."""
    candidate, calls = counted()
    run = slow_run(candidate, explain=False)
    planned = {one.id: one for one in run.planned()}
    run.run(planned["numerics.golden"], clause_run=ClauseRun(most=3))
    before = len(calls)
    result = run.run(planned["shape.output"], clause_run=ClauseRun(most=3))
    assert (result.examples, len(calls)) == (3, before)


def test_right_answers_have_no_name() -> None:
    """Nothing is said of a mistake that no answer shows."""
    declared: Candidate = conformance.core(torch.nn.functional.scaled_dot_product_attention)
    run = slow_run(declared, explain=False)
    planned = next(one for one in run.planned() if one.id == "numerics.golden")
    run.run(planned, clause_run=ClauseRun(most=2))
    subject = run.subject(planned.dtype)
    clause = run._clauses[planned.id]
    few = FewCalls(subject, named_mistakes())
    assert few.explain(clause, subject.known_problems()[0]) == []
