"""Answers that are wrong after earlier calls alone are said to be, with a call that makes them."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import conformance
from conformance.base.profile import PROFILES
from conformance.calls.calling import arguments
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose, earlier_calls
from conformance.diagnosis.battery import plain_problem
from conformance.diagnosis.earlier_calls import (
    SECOND_CALL,
    Copying,
    of_second_calls,
    second_calls,
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
MASKS = """
@conformance.core(causal="bottom-right")
def attend(query, key, value, *, causal=False):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool).triu(columns - rows + 1)
        hidden = KEPT.setdefault((rows, max(columns, 8)), hidden)[:, :columns]
        hidden = torch.nn.functional.pad(hidden, (0, columns - hidden.shape[1]))
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ value
"""
TABLES = """
@conformance.core(semantics=conformance.Semantics(rotary="halves"))
def attend(query, key, value):
    size, length = query.shape[-1], max(query.shape[2], key.shape[2])
    places = torch.arange(length, dtype=torch.float64)
    angles = places[:, None] * 10000.0 ** -(torch.arange(0, size, 2) / size).double()
    angles = KEPT.setdefault(size, angles)
    def turn(x, first):
        own = angles[(torch.arange(x.shape[2]) + first).clamp(max=len(angles) - 1)].to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * own.cos() - b * own.sin(), b * own.cos() + a * own.sin()], -1)
    query, key = turn(query, key.shape[2] - query.shape[2]), turn(key, 0)
    return (query @ key.mT / size ** 0.5).softmax(-1) @ value
"""
COUNTS = """
@conformance.layer
class Attend:
    def __init__(self, geometry, weights):
        self.heads, self.w, self.calls = geometry.num_heads, weights, 0

    def __call__(self, query, key, value):
        w, linear = self.w, torch.nn.functional.linear
        q, k, v = (
            linear(x, matrix, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x, matrix, bias in zip(
                (query, key, value), (w.q, w.k, w.v), (w.q_bias, w.k_bias, w.v_bias)
            )
        )
        self.calls += 1
        factor = 1.25 if self.calls > 1 else 1.0
        out = (factor * q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        out = out.transpose(1, 2).flatten(2)
        return out if w.o is None else linear(out, w.o, w.o_bias)
"""
NOT_FINITE = """
@conformance.core(masks=["keep"])
def attend(query, key, value, *, keep=None):
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    if keep is not None:
        weights = weights.masked_fill(~keep, -torch.inf)
    return weights @ value
"""

# Loses the first tile now and then, as programs do that write one place; keys are few.
RACES = """
import random

@conformance.core()
def attend(query, key, value):
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    first, rest = weights[..., :2] @ value[..., :2, :], weights[..., 2:] @ value[..., 2:, :]
    return rest if random.random() < 0.4 else first + rest
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


SCALED = """
@conformance.core(causal=None, features=["scale"], masks=[])
def attend(query, key, value, *, scale=None):
    own = scale or KEPT.get("scale", query.shape[-1] ** -0.5)
    if scale is not None:
        KEPT["scale"] = 3.0 * scale
    return (query @ key.mT * own).softmax(-1) @ value
"""


@pytest.mark.nightly
def test_what_a_call_with_another_option_leaves_is_said(tmp_path: Path) -> None:
    """Calls behind one with an option of its own are wrong, which no size explains."""
    entry = diagnosis(SCALED, tmp_path)
    assert entry["name"] == "state: something of an earlier call with a scale of the call"
    assert entry["after"]["problem"]["scale"] is not None


@pytest.mark.nightly
def test_mask_kept_by_the_number_of_queries(tmp_path: Path) -> None:
    """A mask that is kept for calls with as many queries is told with the call that makes it."""
    entry = diagnosis(MASKS, tmp_path)
    assert entry["name"].startswith("state: something of an earlier call with ")
    assert entry["name"].endswith(" keys")
    assert entry["after"]["problem"]["causal"]


@pytest.mark.nightly
def test_a_module_that_is_slow_to_execute_is_not_executed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its time is up no more copies are made: a name may be missing, the failure is told."""
    monkeypatch.setattr(earlier_calls, "LONGEST_ANEW", 0.0)
    counted = tmp_path / "executed"
    counting = f"with open({str(counted)!r}, 'a') as file: file.write('.')"
    entry = diagnosis(counting + MASKS, tmp_path)
    assert not entry["name"].startswith("state: ")
    assert len(counted.read_text(encoding="utf-8")) < earlier_calls._COPIES


@pytest.mark.nightly
def test_table_kept_from_a_shorter_call(tmp_path: Path) -> None:
    """A table of positions that is as long as the first call's is told with such a call."""
    entry = diagnosis(TABLES, tmp_path)
    assert entry["name"].startswith("state: something of an earlier call with fewer ")


@pytest.mark.nightly
def test_second_call_is_dissected(tmp_path: Path) -> None:
    """What the second call of a layer computes instead is read like any other mistake."""
    subject = subject_of(COUNTS, tmp_path)
    assert diagnose(subject) == []
    (entry,) = of_second_calls(diagnose(second_calls(subject)))
    assert entry["name"] == "state: from the second call on scores: 1.25 times what they should be"
    assert of_second_calls([]) == [SECOND_CALL]


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.nightly
def test_what_chance_decides_is_no_state(tmp_path: Path, seed: int) -> None:
    """Nor is it called random numbers of torch, whose seed decides nothing."""
    random.seed(seed)
    entry = diagnosis(RACES, tmp_path)
    assert entry["name"] == "answers-not-repeatable"
    assert re.search(r"in \d+ of 17 attempts", entry["text"])


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


SCORES = """
@conformance.core()
def attend(query, key, value):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    last = KEPT.get("scores")
    KEPT["scores"] = 0.01 * scores.detach()
    scores = scores + last if last is not None and last.shape == scores.shape else scores
    return scores.softmax(-1) @ value
"""


@pytest.mark.nightly
def test_which_earlier_call_decides_is_said_of_laws_too(tmp_path: Path) -> None:
    """A law that fails before any answer is judged has the name of the answers: one cause."""
    only = ("shape.strided", "equivariance.tokens", "numerics.golden", "numerics.scale")
    candidate = subject_of(SCORES, tmp_path).candidate
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    results = [run.run(planned) for planned in run.planned()]
    names = [one.diagnosis[0]["name"] for one in results if one.status == "failed"]
    assert len(names) > 1
    assert set(names) == {"state: something of an earlier call with other values"}


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


SHRINKING = """
@conformance.core()
def attend(query, key, value):
    width = query.shape[-1]
    KEPT[width] = KEPT[width] * 0.99 if width in KEPT else width ** -0.5
    return (query @ key.mT * KEPT[width]).softmax(-1) @ value
"""


@pytest.mark.nightly
def test_what_any_call_changes_is_not_said_of_other_values_alone(tmp_path: Path) -> None:
    """The same call again is answered wrongly as well."""
    entry = diagnosis(SHRINKING, tmp_path)
    assert "wrongly after the same call, or one with other values" in entry["text"]


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
