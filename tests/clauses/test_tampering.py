from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from examples import bare, core, layer, plan, problem, run_clause, try_on
from torch import Tensor

from candidates.broken import MISTAKES
from conformance.clauses.numerics import golden_answer
from conformance.clauses.state import inputs_unchanged
from conformance.clauses.subject import Subject
from conformance.clauses.tampering import unseen
from conformance.declare.candidate import Candidate

PROMISES: dict[str, Any] = {"masks": [], "causal": None, "features": [], "empty_rows": "any"}
BY_NAME = {mistake.name: mistake.candidate for mistake in MISTAKES}


@pytest.mark.parametrize("candidate", [core, layer])
@pytest.mark.parametrize("slug", ["state.untampered", "state.unseen"])
def test_honest_candidates_leave_the_judge_alone(candidate: Any, slug: str) -> None:
    """An honest core and an honest layer pass, and their examples bind."""
    finding = try_on(candidate(), slug, problem(mask=plan()))
    assert finding.violation is None
    assert finding.binding


def test_random_numbers_are_seeded_where_torch_lost_the_name_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's compiler replaces ``manual_seed``, so it is not watched: no verdict depends on it."""
    monkeypatch.setattr(torch, "manual_seed", None)
    assert try_on(core(), "state.settings", problem(mask=plan())).violation is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GoldenEdited", "the golden answer"),
        ("BoundEdited", "the bound"),
        ("QuestionEdited", "the judge's own value"),
        ("ComparisonReplaced", "conformance.oracle.comparison.compare"),
        ("ComparisonRewritten", "the code of conformance.oracle.comparison.disagreement"),
        ("RoundoffEnlarged", "conformance.tolerance.model.UNIT_ROUNDOFF"),
        ("ProductReplaced", "torch.matmul"),
        ("ModeLeftOn", "a mode of torch"),
        ("TraceLeftOn", "the trace function"),
    ],
)
def test_who_reaches_for_the_judge_is_reported(name: str, message: str) -> None:
    """The violation says what was changed, and the next candidate is judged as ever."""
    assert isinstance(BY_NAME[name], Candidate)
    violation = try_on(BY_NAME[name], "state.untampered", problem()).violation
    assert violation is not None
    assert violation.kind == "tampered"
    assert message in violation.message
    assert try_on(core(), "state.untampered", problem()).violation is None


def test_what_was_changed_in_another_clause_is_reported_here() -> None:
    """One call of the whole run is enough, and it is reported once."""
    calls: list[int] = []

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 1:
            sys.modules["conformance.oracle.comparison"].compare = None  # type: ignore[attr-defined]
        return bare(query, key, value)

    subject = Subject(core(kernel, **PROMISES), "float32")
    subject.answer(subject.inputs(problem()))
    assert "conformance.oracle.comparison.compare" in subject.tampered()
    assert subject.tampered() == []


def test_who_blinds_the_watch_first_is_reported_all_the_same() -> None:
    """What looks for changes is looked at first, by what runs already."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        sys.modules["conformance.calls.integrity"].Seal.broken = lambda *_, **__: []  # type: ignore[attr-defined]
        comparison = sys.modules["conformance.oracle.comparison"]
        for name in ("conformance.oracle.comparison", "conformance.clauses.judging"):
            sys.modules[name].compare = lambda *_, **__: comparison.Comparison(margin=0.0)  # type: ignore[attr-defined]
        return bare(query, key, value) * 0

    blinding = core(kernel, **PROMISES)
    assert run_clause(blinding, "numerics.golden").status == "failed"
    result = run_clause(blinding, "state.untampered")
    assert result.violation is not None
    assert "Seal.broken" in result.violation.message
    assert "conformance.oracle.comparison.compare" in result.violation.message


def test_an_edit_in_another_clause_fails_inputs_unchanged() -> None:
    """A call with other sizes that wrote into its inputs is made again, and fails."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = bare(query, key, value)
        if key.shape[2] == 11:
            key.zero_()
        return output

    subject = Subject(core(kernel, **PROMISES), "float32")
    assert inputs_unchanged(subject, problem()).violation is None
    subject.answer(subject.inputs(problem(key_length=11)))
    violation = inputs_unchanged(subject, problem()).violation
    assert violation is not None
    assert violation.message == "the call changed its key in place"
    assert inputs_unchanged(subject, problem()).violation is None


def test_what_is_looked_up_is_not_there_yet() -> None:
    """Whoever takes the golden answer from its callers is right once it lies there, and fails."""
    assert run_clause(BY_NAME["GoldenLookedUp"], "state.unseen").status == "failed"


def test_what_the_judge_remembers_is_not_there_either() -> None:
    """Whoever reads golden answers from the memory of the run fails, though others stand there."""

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for known, its in list(subject.oracle._answers.items()):  # the cheat
            if known.query.shape == query.shape and torch.equal(known.query, query):
                return its.output.to(query.dtype)
        return torch.zeros_like(query @ key.mT @ value)

    subject = Subject(core(kernel, **PROMISES), "float32")
    asked = problem()
    assert golden_answer(subject, asked).violation is None
    violation = unseen(subject, asked).violation
    assert violation is not None
    assert "nobody has answered before" in violation.message


def test_lying_tensors_are_read_by_their_numbers() -> None:
    """A tensor that shows other numbers when it is copied is judged by those it holds."""
    for name in ("AnswerSpeaksForItself", "AnswerPosesAsTensor"):
        finding = try_on(BY_NAME[name], "numerics.golden", problem())
        assert finding.violation is not None


def test_torch_is_itself_after_all_that() -> None:
    """No change of any of these candidates outlives its call."""
    matrix = torch.full((2, 3), 2.0)
    assert torch.equal(matrix @ matrix.mT, torch.full((2, 2), 12.0))
    assert torch.equal(torch.matmul(matrix, matrix.mT), torch.full((2, 2), 12.0))
    assert sys.gettrace() is None


def test_who_is_always_wrong_is_not_taken_to_look_answers_up() -> None:
    """A wrong candidate that answers alike before and after the golden exists passes here."""

    def doubled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return 2.0 * bare(query, key, value)

    assert run_clause(core(doubled, **PROMISES), "state.unseen").status == "passed"
