"""What chance decides is named: dropout, other random numbers; a device is waited for."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, core, problem, run_clause
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

import conformance
from candidates.broken.modules import DropoutInEval
from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.diagnosis import chance
from conformance.diagnosis.chance import Waiting, random_entry

NONE: dict[str, Any] = {"masks": [], "causal": None, "features": []}


class _Dropping(EagerCore):
    """Drops weights in every call."""

    def drop_out(self, weights: Tensor, probability: float) -> Tensor:
        del probability
        return functional.dropout(weights, 0.25)


class _DroppingUnscaled(EagerCore):
    """The same without making up for what is dropped."""

    def drop_out(self, weights: Tensor, probability: float) -> Tensor:
        del probability
        return weights * (torch.rand_like(weights) > 0.25)


class _DroppingOutput(EagerCore):
    """Drops elements of the answer."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        return functional.dropout(super().mix(weights, value), 0.25)


class _Noisy(EagerCore):
    """Adds noise to the logits."""

    def logits(self, call: Any, key: Tensor) -> Tensor:
        found = super().logits(call, key)
        return found + 0.1 * torch.randn_like(found)


class _NoisyOutput(EagerCore):
    """Adds noise to the answer, other for each channel."""

    def mix(self, weights: Tensor, value: Tensor) -> Tensor:
        mixed = super().mix(weights, value)
        return mixed + 0.1 * torch.randn_like(mixed)


class _Counting(EagerCore):
    """Answers differently from call to call, without random numbers."""

    calls = 0

    def scale(self, call: Any) -> float:
        self.calls += 1
        return super().scale(call) * self.calls


@pytest.mark.parametrize(
    ("candidate", "name", "text"),
    [
        (core(_Dropping(), **NONE), "dropout-left-on", "probability of 0.25, in a call"),
        (core(_DroppingUnscaled(), **NONE), "dropout-left-on", r"0\.2\d and not rescaled"),
        (core(_DroppingOutput(), **NONE), "dropout-left-on", "elements of the answer"),
        (DropoutInEval, "dropout-left-on", "weights are dropped with a probability"),
        (core(_Noisy(), **NONE), "random-answers", "differs with torch's seed"),
        (core(_NoisyOutput(), **NONE), "random-answers", "differs with torch's seed"),
    ],
)
def test_what_makes_answers_random_is_named(candidate: Any, name: str, text: str) -> None:
    """Dropout is told from other random numbers, with what it drops and how often."""
    entry = random_entry(Subject(candidate, "float32"), problem())
    assert entry is not None
    assert entry["name"] == name
    assert re.search(text, entry["text"])


@pytest.mark.parametrize("kernel", [EagerCore(), _Counting()])
def test_what_the_seed_does_not_decide_is_not_random(kernel: EagerCore) -> None:
    """A steady candidate, and one that remembers its calls, draw no random numbers."""
    assert random_entry(Subject(core(kernel, **NONE), "float32"), problem()) is None


def test_random_answers_blame_nothing_else() -> None:
    """A law that fails for random answers says so; the clause of repetition shows two calls."""
    law = run_clause(core(_Dropping(), **NONE), "shape.bounds", explain=True)
    assert law.status == "failed"
    assert law.reason.startswith("equal calls give different answers")
    assert [entry["name"] for entry in law.diagnosis] == ["dropout-left-on"]
    again = run_clause(core(_Dropping(), **NONE), "state.repeatable", explain=True)
    assert again.reason.startswith("the same call made twice gives two answers")
    assert [entry["name"] for entry in again.diagnosis] == ["dropout-left-on"]


def test_a_device_is_waited_for_where_gradients_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after the one call, as for answers, and its backward pass."""
    waited: list[str] = []
    monkeypatch.setattr(chance, "synchronise", waited.append)
    subject = Subject(core(scaled_dot_product_attention, **BARE_FLOAT32), "float32")
    waiting = Waiting(subject, before=True, after=True)
    inputs = waiting.inputs(problem())
    waiting.gradients.of(inputs, torch.ones(inputs.output_shape))
    assert waited == ["cpu"] * 4


def test_a_race_of_threads_that_a_call_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal calls differ in no order, and not where one processor runs all threads."""
    numbers, pinned = random.Random(1), []  # noqa: S311 (no secret)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        return answer if pinned or numbers.random() > 0.4 else answer + 1.0

    @contextmanager
    def on_one_processor(_processors: set[int]) -> Iterator[None]:
        pinned.append(True)
        yield
        pinned.clear()

    monkeypatch.setattr(chance, "_keep_to_one_processor", on_one_processor)
    monkeypatch.setattr(chance.os, "sched_getaffinity", lambda _process: {0, 1})
    report = conformance.check(core(attend, **NONE), only=("numerics.golden", "state.repeatable"))
    assert {cause.name for cause in report.causes} == {"race"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says where threads run")
def test_all_threads_of_the_process_take_turns_on_one_processor() -> None:
    """And are put back."""
    before = os.sched_getaffinity(0)
    with chance._keep_to_one_processor(before):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
