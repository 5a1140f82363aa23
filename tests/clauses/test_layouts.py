"""varlen.*, out.*, operator.*, compile.*: examples keep them, each mistake breaks its own."""

from __future__ import annotations

import functools

import pytest
import torch

import conformance
from candidates.broken import MISTAKES, Mistake
from candidates.numpy_attention import numpy_attention
from candidates.operator_attention import operator_attention
from candidates.out_attention import out_attention
from candidates.packed_attention import packed_kv_attention, packed_qkv_attention
from candidates.varlen_attention import varlen_attention
from conformance import Candidate
from conformance.base.profile import Profile
from conformance.base.results import ClauseResult
from conformance.errors import DeclarationError
from conformance.running.runner import CandidateRun

SMALL = Profile(name="small", examples=12, longest=12, reductions=0)
OWN = ("varlen.*", "out.*", "operator.*", "compile.*")
BROKEN = [
    mistake
    for mistake in MISTAKES
    if mistake.primary.partition(".")[0] in ("varlen", "out", "operator")
]


def valued(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """No attention at all."""
    del query, key
    return value


def results(candidate: Candidate, *only: str) -> dict[str, ClauseResult]:
    """What some clauses show of a candidate, by slug, without those that do not apply."""
    run = CandidateRun(
        candidate, profile=SMALL, dtypes=("float32",), only=only or OWN, explain=False
    )
    of_clauses = [run.run(planned) for planned in run.planned() if not planned.reason]
    return {result.id: result for result in of_clauses}


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "candidate",
    [
        varlen_attention,
        packed_qkv_attention,
        packed_kv_attention,
        out_attention,
        operator_attention,
        numpy_attention,
    ],
    ids=lambda candidate: candidate.name,
)
def test_example_keeps_its_clauses(candidate: Candidate) -> None:
    """Each example passes the golden clause and those that are about what it shows."""
    of_clauses = results(candidate, *OWN, "numerics.golden", "shape.*")
    assert {result.status for result in of_clauses.values() if result.level == "MUST"} == {"passed"}


@pytest.mark.parametrize("mistake", BROKEN, ids=lambda mistake: mistake.name)
def test_mistake_fails_its_clause(mistake: Mistake) -> None:
    """Each mistake of a layout, a buffer or an operator fails its primary clause and its others."""
    of_clauses = results(mistake.candidate, mistake.primary, *mistake.also)
    assert {result.status for result in of_clauses.values()} == {"failed"}


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_form_is_held_against_the_eager_one(
    *, dynamic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A correct kernel agrees with itself compiled; one that has a path for that case does not."""
    traced = functools.partial(torch.compile, backend="eager")  # the compiler itself takes minutes
    monkeypatch.setattr("conformance.adapters.compiled.torch.compile", traced)

    def right(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value

    def wrong(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = right(query, key, value)
        return output * 1.01 if torch.compiler.is_compiling() else output

    statuses = []
    for function in (right, wrong):
        eager = conformance.core(without=["gradients"])(function)
        of_clauses = results(conformance.compiled(eager, dynamic=dynamic))
        statuses.append(of_clauses["compile.agrees"].status)
    assert statuses == ["passed", "failed"]


def test_what_is_expected_of_a_family_is_expected_compiled() -> None:
    """A pattern of the declaration counts for the compiled form where it names a clause of it."""
    declared = conformance.core(expected_failures={"mask.*": "m", "equivariance.*": "e"})
    kept = conformance.compiled(declared(operator_attention.function)).declaration
    assert [entry.clause for entry in kept.expected_failures] == ["mask.*"]


def test_few_clauses_judge_the_compiled_form() -> None:
    """Of a compiled candidate most clauses are left to the eager one, with that reason."""
    compiled = conformance.compiled(operator_attention)
    run = CandidateRun(compiled, profile=SMALL)
    reasons = {planned.id: planned.reason for planned in run.planned()}
    assert not reasons["numerics.golden"]
    assert reasons["equivariance.batch"] == "asked of the candidate as it is, uncompiled"
    assert run.profile.examples < SMALL.examples


@pytest.mark.parametrize("name", ["nobody::nothing", "aten::__class__", "__class__::mro"])
def test_unknown_operator_is_refused(name: str) -> None:
    """An operator that is not registered is reported in one sentence, whatever the name."""
    with pytest.raises(DeclarationError, match=f"'{name}', which is not registered"):
        conformance.core(operator=name)(valued)


def test_keyword_that_a_schema_lacks_is_refused() -> None:
    """An operator's own schema is its signature."""
    operator = operator_attention.function
    with pytest.raises(DeclarationError, match="does not take the keyword 'scale'"):
        conformance.core(features=["scale"])(operator)
