"""What a diagnosis says of a mistake without a name is true."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, problem, run_clause
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from candidates.broken.modules import DropoutInEval
from candidates.eager import EagerCore
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, answer_facts, diagnose
from conformance.diagnosis.answer_facts import Waiting, random_entry


def facts_of(function: Callable[..., Tensor], **promises: Any) -> tuple[dict[str, Any], str]:
    """The facts and the text of the only entry of a core without a name."""
    (entry,) = diagnose(Subject(core(function, **{**BARE_FLOAT32, **promises}), "float32"))
    assert entry["name"] == "unknown-mistake"
    assert entry["confidence"] == 0.0
    return entry["facts"], entry["text"]


def test_constant_factor_is_told() -> None:
    """Where a part of the answer is three quarters of what is expected, it is said to be that."""

    def less(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        output[..., ::2] *= 0.75
        return output

    facts, text = facts_of(less)
    assert facts["ratio"] == pytest.approx(0.75, rel=1e-5)
    assert "0.75 times what is expected" in text
    assert facts["ones_stay"] is False
    assert facts["ones_become"] == pytest.approx([0.75, 1.0])


def test_constant_difference_is_told() -> None:
    """Where a part of the answer is too large by a quarter, it is said to be that."""

    def more(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        output[..., ::2] += 0.25
        return output

    facts, text = facts_of(more)
    assert facts["difference"] == pytest.approx(0.25, rel=1e-4)
    assert "ratio" not in facts
    assert "+0.25 throughout" in text


def test_affected_head_is_told() -> None:
    """Where one head alone is wrong, that one is named, and where its answer is zero."""

    def second_head_zero(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        output[:, 1:2, :, ::2] = 0.0
        return output

    facts, text = facts_of(second_head_zero)
    assert facts["affected"]["head"] == [1]
    assert facts["affected"]["batch"] == "all"
    assert facts["answer"] == "zero"
    assert "goes wrong only at head 1 (of 0 to " in text
    assert "stay so" not in text  # beside "the answer is zero there"


def test_what_wrong_problems_share_is_told() -> None:
    """A mistake that shows only with a mask is said to."""

    def some_rows(
        query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        if keep is not None:
            some = torch.isin(torch.arange(query.shape[2]), torch.tensor([1, 2, 4, 7, 11]))
            keep = keep | some[:, None]
        return scaled_dot_product_attention(query, key, value, attn_mask=keep)

    facts, text = facts_of(some_rows, masks=["keep"])
    assert "mask" in facts["only_with"]
    assert facts["affected"]["query"] == [1, 2, 4]
    assert "only those with a mask" in text


def test_answers_at_random_are_told() -> None:
    """A second call that gives another answer is a fact."""

    def noisy(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        return output + torch.randn_like(output)

    facts, text = facts_of(noisy)
    assert facts["repeats"] is False
    assert "a second call" in text


def test_nan_is_told() -> None:
    """How many elements are not finite is counted."""

    def broken(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        output[..., -1, 0] = math.nan
        return output

    facts, text = facts_of(broken)
    assert facts["not_finite"] > 0
    assert facts["affected"]["channel"] == [0]
    assert "not finite" in text


def test_failing_clause_gets_the_name_with_the_remedy() -> None:
    """A run names the mistake, says what to do, and does so for each clause that it explains."""

    def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, scale=1.0)

    result = run_clause(core(unscaled, **BARE_FLOAT32), "numerics.golden", explain=True)
    (entry,) = result.diagnosis
    assert entry["name"] == "scale-missing"
    assert "square root" in entry["fix"]


def test_failure_that_a_name_does_not_explain_is_unknown() -> None:
    """A name must explain the failing problem, too: here it is one that the name leaves right."""

    def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, scale=1.0)

    candidate = core(unscaled, **BARE_FLOAT32)
    known = Diagnostician(Subject(candidate, "float32"))
    assert [one["name"] for one in known.explain()] == ["scale-missing"]
    convex = CLAUSES["numerics.convex"]  # which attention without a scale obeys
    (entry,) = known.explain(convex, problem())
    assert entry["name"] == "unknown-mistake"


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
    """Before and after the one call, as for answers."""
    waited: list[str] = []
    monkeypatch.setattr(answer_facts, "synchronise", waited.append)
    subject = Subject(core(scaled_dot_product_attention, **BARE_FLOAT32), "float32")
    waiting = Waiting(subject, before=True, after=True)
    inputs = waiting.inputs(problem())
    waiting.gradients.of(inputs, torch.ones(inputs.output_shape))
    assert waited == ["cpu", "cpu"]
