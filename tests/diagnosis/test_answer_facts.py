"""What a diagnosis says of a mistake without a name is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, layer, problem, run_clause
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from candidates.broken.buffers import BufferUsedAgain
from conformance import Geometry, ProjectionWeights
from conformance._golden import golden
from conformance.base.profile import PROFILES
from conformance.clauses.subject import Subject
from conformance.diagnosis import Diagnostician, diagnose
from conformance.diagnosis.answer_facts import unknown_entry
from conformance.diagnosis.battery import Observation
from conformance.running.runner import CandidateRun


def facts_of(function: Callable[..., Tensor], **promises: Any) -> tuple[dict[str, Any], str]:
    """The facts and the text of the only entry of a core without a name."""
    (entry,) = diagnose(Subject(core(function, **{**BARE_FLOAT32, **promises}), "float32"))
    assert entry["name"] == "unknown-mistake"
    assert entry["confidence"] == 0.0
    return entry["facts"], entry["text"]


def test_what_the_weights_of_a_layer_sum_to_is_told() -> None:
    """A second softmax that is subtracted leaves a half of values that are all one."""

    def halved(sizes: Geometry, weights: ProjectionWeights) -> Callable[..., Tensor]:
        def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            plain, count = golden.STANDARD, sizes.num_heads
            projected = golden.project_tokens((query, key, value), weights, plain)
            heads = golden.cut_heads(projected, count, count, plain)
            other = golden.attend(heads[0], heads[1].flip(2), heads[2]).output
            merged = golden.merge_heads(golden.attend(*heads).output - 0.5 * other)
            return golden.project_output(merged, weights, plain).to(query.dtype)

        return forward

    subject = Subject(layer(halved, **BARE_FLOAT32), "float32")
    entry = unknown_entry(subject, Observation(subject).whole, None)
    assert "values that are all one become 0.5" in entry["text"]


def test_answers_at_random_are_told() -> None:
    """A second call that gives another answer is a fact."""

    def noisy(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        return output + torch.randn_like(output)

    facts, text = facts_of(noisy)
    assert facts["repeats"] is False
    assert "a second call" in text


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


def _scaled_in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query.mul_(query.shape[-1] ** -0.5) @ key.mT).softmax(-1) @ value


def _also_unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query.mul_(1.5)
    return (query @ key.mT).softmax(-1) @ value


@pytest.mark.parametrize(
    ("function", "golden"), [(_scaled_in_place, "passed"), (_also_unscaled, "failed")]
)
def test_what_writes_into_its_inputs_is_one_cause(
    function: Callable[..., Tensor], golden: str
) -> None:
    """Of every failure that copies of the inputs mend, an exception among them, and of no other."""
    only = ("shape.expanded", "shape.shared", "state.inputs-unchanged", "numerics.golden")
    run = CandidateRun(
        core(function, **BARE_FLOAT32), profile=PROFILES["quick"], only=only, explain=True
    )
    results = {planned.id: run.run(planned) for planned in run.planned()}
    assert results["numerics.golden"].status == golden
    assert all(entry["name"] != "inputs-changed" for entry in results["numerics.golden"].diagnosis)
    laws = [one for slug, one in results.items() if slug != "numerics.golden"]
    assert {entry["name"] for one in laws for entry in one.diagnosis} == {"inputs-changed"}
    assert all(one.diagnosis for one in laws)


def test_what_writes_into_its_output_changes_no_input() -> None:
    """A buffer that a later call uses again is no input, though copies would mend it, too."""
    result = run_clause(BufferUsedAgain, "out.kept", explain=True)
    assert result.status == "failed"
    assert all(entry["name"] != "inputs-changed" for entry in result.diagnosis)


def _turned_round(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
) -> Tensor:
    factor = query.shape[-1] ** -0.5 if scale is not None else scale
    return (query @ key.mT * factor).softmax(-1) @ value


def test_calls_that_raise_beside_a_named_mistake_are_counted() -> None:
    """A condition turned round: the argument is ignored, and every call without it raises."""
    attention = core(_turned_round, **{**BARE_FLOAT32, "features": ["scale"]})
    given = problem(scale=0.3, num_heads=2, num_kv_heads=2, key_length=4, head_size=3)
    diagnostician = Diagnostician(Subject(attention, "float32"))
    (entry, *_) = diagnostician.explain(CLAUSES["numerics.golden"], given)
    assert entry["name"] == "scale-argument-ignored"
    assert "calls raised TypeError" in entry["text"]
    assert entry["text"].endswith("all without a scale of the call, and no others")
