"""What a diagnosis says of a mistake without a name is true."""

from __future__ import annotations

import math
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
from conformance.diagnosis.battery import observe
from conformance.running.runner import CandidateRun


def facts_of(function: Callable[..., Tensor], **promises: Any) -> tuple[dict[str, Any], str]:
    """The facts and the text of the only entry of a core without a name."""
    (entry,) = diagnose(Subject(core(function, **{**BARE_FLOAT32, **promises}), "float32"))
    assert entry["name"] == "unknown-mistake"
    assert entry["confidence"] == 0.0
    return entry["facts"], entry["text"]


@pytest.mark.nightly
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
    entry = unknown_entry(subject, observe(subject), None)
    assert "values that are all one become 0.5" in entry["text"]


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_affected_head_is_told() -> None:
    """Where one head alone is wrong, that one is named, and where its answer is zero."""

    def second_head_zero(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        output[:, 1:2, :, ::3] = 0.0
        return output

    facts, text = facts_of(second_head_zero)
    assert facts["affected"]["head"] == [1]
    assert facts["affected"]["batch"] == "all"
    assert facts["answer"] == "zero"
    assert "goes wrong only at head 1 (of 0 to " in text
    assert "stay so" not in text  # beside "the answer is zero there"


@pytest.mark.nightly
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


@pytest.mark.nightly
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


PROMISES = {
    "masks": ["bias"],
    "causal": None,
    "features": [],
    "empty_rows": "any",
    "dtypes": ["float32"],
}


def strange_where(holds: Callable[[Tensor, Tensor], bool]) -> Callable[..., Tensor]:
    """A core whose weights are no function that is known where sizes meet a condition."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = (scores if bias is None else scores + bias).softmax(-1)
        if holds(query, key):
            weights = weights.pow(1.3) + 0.01 * torch.arange(key.shape[2])
        return weights @ value

    return attend


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("holds", "words"),
    [
        (lambda _query, key: key.shape[2] % 2 == 1, "where the number of keys is odd"),
        (lambda query, _key: query.shape[2] % 2 == 0, "where the number of queries is even"),
        (lambda query, _key: query.shape[3] % 4 != 0, "where 4 does not divide the head size"),
    ],
)
@pytest.mark.nightly
def test_plain_sizes_that_decide_are_said(
    holds: Callable[[Tensor, Tensor], bool], words: str
) -> None:
    """What tells all wrong problems from right ones is said, and no coincidence beside it."""
    (entry,) = diagnose(Subject(core(strange_where(holds), **PROMISES), "float32"))
    assert f"problems go wrong, only those {words};" in entry["text"]
    assert entry["facts"]["never_with"] == []


@pytest.mark.nightly
def test_the_size_from_which_on_an_answer_is_wrong_is_said() -> None:
    """What no name explains, and one wrong problem shows alone, is told with its number of keys."""
    strange = strange_where(lambda _query, key: key.shape[2] > 100)
    (entry,) = diagnose(Subject(core(strange, **PROMISES), "float32"))
    assert "the plainest goes right with 100 keys, and wrong with 101" in entry["text"]


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
