"""Answers that are wrong after earlier calls alone are said to be, with a call that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import conformance
from conformance.base.profile import PROFILES
from conformance.calls.calling import arguments
from conformance.clauses.subject import Subject
from conformance.diagnosis.battery import plain_problem
from conformance.diagnosis.earlier_calls import (
    Copying,
    state_entry,
)
from conformance.identification.opening import resolve_one
from conformance.running.clause_run import ClauseRun
from conformance.running.runner import CandidateRun

HEAD = """
import torch
import conformance

KEPT = {}

"""
NOT_FINITE = """
@conformance.core(masks=["keep"])
def attend(query, key, value, *, keep=None):
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    if keep is not None:
        weights = weights.masked_fill(~keep, -torch.inf)
    return weights @ value
"""


def subject_of(text: str, folder: Path) -> Subject:
    """The one candidate of a file with some text."""
    path = folder / "keeping.py"
    path.write_text(HEAD + text, encoding="utf-8")
    (candidate,) = resolve_one(str(path))
    return Subject(candidate, "float32")


def diagnosis(text: str, folder: Path) -> dict[str, Any]:
    """The first entry of the diagnosis of the first failing clause that has one."""
    candidate = subject_of(text, folder).candidate
    only = ("mask.*", "numerics.golden", "numerics.options", "position.*")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    for planned in run.planned():
        result = run.run(planned, clause_run=ClauseRun(deferred=True))
        if result.status == "failed":
            diagnosed = run.explain_failure(planned, result).diagnosis
            if diagnosed:
                return dict(diagnosed[0])
    raise AssertionError


def test_answers_that_are_not_finite_are_no_earlier_answers(tmp_path: Path) -> None:
    """Two NaN are not equal: nothing is said of earlier calls."""
    assert state_entry(subject_of(NOT_FINITE, tmp_path)) is None


CACHE = """
class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            torch.nn.Linear(4, 4) for _ in range(4)
        )
        self.heads, self.kept = 2, None

    def forward(self, x):
        q, k, v = (
            project(x).unflatten(-1, (2, 2)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.kept is not None and self.kept[0].shape[0] == k.shape[0]:
            k, v = (torch.cat(pair, 2) for pair in zip(self.kept, (k, v)))
        self.kept = k.detach(), v.detach()
        weights = (q @ k.mT / 2**0.5).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))

cached = conformance.module(Cached(), inputs="self")
"""


def test_a_cache_that_is_never_cleared_is_one_cause(tmp_path: Path) -> None:
    """What compares answers alone, and gradients that two calls add up, blame what is kept too."""
    run = CandidateRun(
        subject_of(CACHE, tmp_path).candidate,
        profile=PROFILES["quick"],
        only=("state.no-memory", "state.call-order", "gradients.accumulate"),
        dtypes=("float32",),
    )
    results = [run.run(planned) for planned in run.planned()]
    names = [
        one.diagnosis[0]["name"] if one.diagnosis else run.explained_by(one) for one in results
    ]
    assert names == ["state: the keys and values of an earlier call before its own"] * len(names)
    assert len(names) == len(run.only)


STRIDES = """
def rows(tensor):
    strides = torch.empty(tensor.shape).stride()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides))
    held = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    inside = reach < held and tensor.numel()
    return tensor.as_strided(tensor.shape, strides) if inside else tensor


@conformance.core()
def attend(query, key, value):
    query, key, value = rows(query), rows(key), rows(value)
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
"""


def test_strides_that_are_ignored_are_one_cause_of_every_clause_that_hands_them_over(
    tmp_path: Path,
) -> None:
    """An answer that is right for contiguous inputs alone is named where answers are judged."""
    candidate = subject_of(STRIDES, tmp_path).candidate
    only = ("shape.strided", "shape.bounds", "gradients.strided")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    results = [run.run(planned) for planned in run.planned()]
    named = {one.id: [entry["name"] for entry in one.diagnosis] for one in results}
    assert named == {slug: ["strides-ignored"] for slug in only}


OUT = """
@conformance.core(features=["out"])
def attend(query, key, value, *, out=None):
    answer = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
    return answer if out is None else out.add_(answer)
"""


def test_a_buffer_that_is_added_to_is_no_earlier_call(tmp_path: Path) -> None:
    """What it held before is another argument: the call without it is right, and no first call."""
    candidate = subject_of(OUT, tmp_path).candidate
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=("out.written",))
    (result,) = [run.run(planned) for planned in run.planned()]
    assert result.status == "failed"
    assert not result.diagnosis


def test_copies_have_the_strides_of_what_is_copied() -> None:
    """Gaps stay, so that what is wrong for strides is wrong with copies, too."""
    got: list[Tensor] = []

    @conformance.core
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        got.extend((query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    copying = Copying(Subject(attend, "float32"))
    given = copying.inputs(plain_problem(copying))
    for layout in ("every-other", "channels-first"):
        inputs = given.replace(layout=layout)
        (query, *_), _ = arguments(inputs)
        copying.answer(inputs)
        assert got[0].stride() == query.stride()
        assert torch.equal(got[0], query)
        got.clear()


def test_answers_that_are_all_alike_are_no_answer_of_an_earlier_call() -> None:
    """Zeros for each call: the first was as wrong."""

    @conformance.core
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.zeros_like(query @ key.mT @ value)

    assert state_entry(Subject(attend, "float32")) is None


STALE = """
import torch
import conformance
KEPT = {}
@conformance.core()
def attend(query, key, value):
    answer = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
    answer = answer + 0.01 * KEPT.get(answer.shape, torch.zeros_like(answer))
    KEPT[answer.shape] = answer
    return answer
"""


def test_what_repeats_only_sometimes_is_what_is_kept(tmp_path: Path) -> None:
    """Where each call is the first of a copy, the clause passes: nothing else decides."""
    run = CandidateRun(
        subject_of(STALE, tmp_path).candidate,
        profile=PROFILES["quick"],
        only=("state.no-memory", "gradients.accumulate"),
        dtypes=("float32",),
    )
    remembered, accumulated = (
        next(run.run(one) for one in run.planned() if one.id == slug) for slug in run.only
    )
    assert accumulated.violation is not None
    assert accumulated.violation.kind == "raised"
    assert run.explained_by(accumulated) == remembered.diagnosis[0]["name"]
