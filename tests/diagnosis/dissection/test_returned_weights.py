"""What is returned in place of the weights is said, and never that gradients are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, problem
from torch import Tensor

import conformance
from candidates.broken.asked_weights import (
    Aside,
    DropoutWithWeights,
    WeightsOfReversedHeads,
    WeightsWithoutBias,
)
from candidates.broken.gradient_outputs import ReturnedWeightsIgnoredBackward
from candidates.broken.heads import WeightsBeforeSoftmax, WeightsWithoutMask
from candidates.eager import Answer, Call, EagerCore
from conformance.base.profile import PROFILES
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis import diagnose
from conformance.diagnosis.diagnostician import Diagnostician
from conformance.diagnosis.dissection import returned_weights
from conformance.diagnosis.dissection.returned_weights import Content, Returned
from conformance.diagnosis.earlier_calls import EARLIER_CALLS
from conformance.running.runner import CandidateRun

Change = Callable[[Tensor, Call], Any]
BEFORE_HIDING = "logits, before keys are hidden, with the minus infinities of an additive mask"


def returning(change: Change) -> Candidate:
    """A core that answers rightly and returns something else than its weights."""

    class Other(Aside):
        def changed(self, output: Tensor, weights: Tensor, call: Call) -> Answer:
            return output, change(weights, call)

    return core(Other())


def mean(weights: Tensor, call: Call) -> Tensor:
    """One table for all heads."""
    del call
    return weights.mean(1)


def halved_with_the_flag(weights: Tensor, call: Call) -> Tensor:
    """Half of each weight, where the causal flag is set."""
    return weights / 2.0 if call.causal else weights


def of_another_scale(weights: Tensor, call: Call) -> Tensor:
    """The weights of another attention: that without a scale of its own."""
    del weights
    scale = 1.0 if call.scale is None else call.scale
    return EagerCore().attend(call.replace(scale=scale))[1]


def noisy(weights: Tensor, call: Call) -> Tensor:
    """Nothing that anybody could name."""
    del call
    return weights + torch.sin(100.0 * weights)


def names(candidate: Candidate, clause: str) -> list[str]:
    """The names that the failure of a clause gets."""
    subject = Subject(candidate, "float32")
    return [each["name"] for each in diagnose(subject, CLAUSES[clause], problem())]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (WeightsOfReversedHeads, "weights that are those of the head counted from the end"),
        (WeightsWithoutBias, "the weights without the numbers of an additive mask"),
        (
            WeightsBeforeSoftmax,
            f"the {BEFORE_HIDING}",
        ),
        (
            WeightsWithoutMask,
            f"the softmax of the {BEFORE_HIDING.replace(',', '', 1)}",
        ),
        (returning(of_another_scale), "the weights of scale-missing"),
        (returning(mean), "the mean of the weights over the heads, [B, Lq, Lk]"),
        (returning(halved_with_the_flag), "1/2 times the weights"),
        (
            returning(lambda weights, _call: weights.flatten(0, 1)),
            "the weights of batch items and heads in one axis",
        ),
        (
            returning(lambda weights, _call: weights.reshape(weights.shape[1:])),
            "the weights without the axis of batch items",
        ),
        (
            returning(lambda weights, call: weights.unflatten(1, (call.key.shape[1], -1))),
            "the weights with an axis of groups and one of their heads",
        ),
    ],
)
def test_what_is_returned_as_weights_is_said(candidate: Candidate, name: str) -> None:
    """The plainest thing that holds for all that was returned is said."""
    assert names(candidate, "shape.weights") == [f"returned weights: {name}"]


@conformance.core(masks=["keep"], features=["weights"])
def filling(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    return_weights: bool = False,
) -> Any:
    """Returns what enters the softmax, in which a finite number stands for hidden keys."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, -1e9)
    output = scores.softmax(-1) @ value
    return (output, scores) if return_weights else output


def test_a_finite_fill_hides_nothing_of_what_is_returned() -> None:
    """Logits are told where hidden keys have a number, not minus infinity, as well."""
    name = "returned weights: the logits, with one finite number for hidden keys"
    assert names(filling, "shape.weights") == [name]


def test_weights_that_are_nothing_known_are_no_gradient_mistake() -> None:
    """What is wrong about them is said where their gradients are wrong; no name is given."""
    assert names(returning(noisy), "gradients.weights") == ["unknown-mistake"]


def test_right_weights_with_wrong_gradients_keep_that_name() -> None:
    """Where the weights themselves are right their gradient is at fault."""
    said = names(ReturnedWeightsIgnoredBackward, "gradients.weights")
    assert said == ["gradient-of-returned-weights-lost"]


def test_most_contents_are_refuted_by_the_first_wrong_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is wrong is looked at before what is right, which many contents explain."""
    tried: Counter[str] = Counter()
    given = returned_weights._given

    def counted(content: Content, returned: Returned) -> Tensor | None:
        tried[content.words] += 1
        return given(content, returned)

    monkeypatch.setattr(returned_weights, "_given", counted)
    assert names(WeightsWithoutBias, "shape.weights") == [
        "returned weights: the weights without the numbers of an additive mask"
    ]
    assert sum(count > 1 for count in tried.values()) < len(tried) / 4


def followed(candidate: Candidate, *slugs: str) -> list[str]:
    """The name of the first clause's failure, and what is said of the others' by it."""
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=slugs, dtypes=("float32",))
    results = {one.id: run.run(one) for one in run.planned()}
    first, *others = (results[slug] for slug in slugs)
    assert all(one.status == "failed" for one in results.values())
    named = [entry["name"] for entry in first.diagnosis]
    return [*named, *(run.explained_by(one) for one in others if not one.diagnosis)]


def test_a_mask_that_is_dropped_where_weights_are_returned_is_one_mistake() -> None:
    """The answers of those calls are wrong as well: no statement about the weights alone is true.

    That asking changes the output is a consequence, and so is another shape of the weights.
    """

    @conformance.core(causal="bottom-right", features=["weights"])
    def dropped(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        return_weights: bool = False,
    ) -> Any:
        plain = EagerCore()
        return plain(
            query, key, value, causal=causal and not return_weights, return_weights=return_weights
        )

    assert followed(dropped, "shape.weights", "shape.weights-aside") == ["causal-ignored"] * 2


def test_weights_of_another_shape_are_one_mistake_wherever_they_are_read() -> None:
    """What is returned is stated once; clauses that only read it fail for that."""
    names = followed(returning(mean), "shape.weights", "shape.weights-aside")
    assert len(set(names)) == 1
    assert "the mean of the weights over the heads" in names[0]
    assert len(names) == 2


def test_answers_that_chance_decides_beside_weights_are_not_said_to_be_kept() -> None:
    """What no acted mistake explains has no name, however earlier calls seem to change it."""
    subject = Subject(
        core(DropoutWithWeights.function, **{**BARE_FLOAT32, "features": ["weights"]}), "float32"
    )
    asked = Diagnostician(subject)
    with patch.object(Diagnostician, "_state_entry", EARLIER_CALLS):
        (entry,) = asked._returned_weights
    assert entry["name"] == "unknown-mistake"
