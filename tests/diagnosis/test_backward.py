"""Wrong gradients are named after the backward pass that gives them, or the wrong answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, layer, problem
from torch import Tensor

import conformance
from candidates.broken import gradients, modified_gradients, threes, weight_gradients
from candidates.broken._backward import HandWritten, HandWrittenLayer
from conformance._golden import golden
from conformance.base.profile import PROFILES
from conformance.clauses.subject import Subject
from conformance.declare.candidate import Candidate
from conformance.diagnosis.backward import BackwardDiagnostician, passes_anew
from conformance.diagnosis.mistakes.backward_pass import gradients_with
from conformance.diagnosis.mistakes.named_mistake import Gradients
from conformance.diagnosis.observed_gradients import further_gradients, observe_gradients
from conformance.oracle.oracle import evaluate
from conformance.problems.combinations import HARDLY
from conformance.problems.inputs import Inputs
from conformance.running.runner import CandidateRun

NAMED = {
    "KeyGradientCut": "gradient-of-key-cut",
    "GradientsHalved": "gradients-halved",
    "SoftmaxJacobianIgnored": "softmax-jacobian-ignored",
    "RowTermOfAnotherRow": "row-term-of-another-row",
    "MaskForgottenBackward": "mask-forgotten-backward",
    "CausalForgottenBackward": "causal-forgotten-backward",
    "SoftcapDerivativeForgotten": "softcap-derivative-forgotten",
    "GroupsTiledBackward": "groups-tiled-backward",
    "ScaledTwiceBackward": "scaled-twice-backward",
    "BiasGradientAveraged": "gradient-of-bias-averaged",
    "FunctionForgottenBackward": "score-mod-derivative-forgotten",
}


def names(candidate: Candidate, clause: str = "gradients.golden") -> list[str]:
    """The names that are given to what flows back."""
    diagnostician = BackwardDiagnostician(Subject(candidate, "float32"))
    return [entry["name"] for entry in diagnostician.explain(clause, problem())]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("candidate", "name"), NAMED.items())
def test_a_wrong_backward_pass_gets_its_name(candidate: str, name: str) -> None:
    """One name, and the right one."""
    homes = (weight_gradients, modified_gradients, gradients)
    home = next(each for each in homes if hasattr(each, candidate))
    assert names(getattr(home, candidate)) == [name]


def test_a_rule_that_is_not_declared_is_not_said_to_be_forgotten() -> None:
    """Where the causal rule alone hides keys, it is what was forgotten, not masks."""
    promises = {**BARE_FLOAT32, "causal": "bottom-right"}
    forgotten = core(gradients.CausalForgottenBackward.function, **promises)
    assert names(forgotten) == ["causal-forgotten-backward"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("candidate", [core(HandWritten()), layer(HandWrittenLayer)])
def test_right_gradients_get_no_name(candidate: Candidate) -> None:
    """Nothing is said of gradients that are right, but what the clause itself says."""
    assert names(candidate) == []
    assert names(candidate, "gradients.accumulate") == ["gradients-overwritten"]


def test_a_backward_pass_begins_once_for_each_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """All wrong passes of a problem start from one evaluation of the attention."""
    begun: list[Inputs] = []

    def counted(inputs: Inputs, point: golden.Semantics) -> object:
        begun.append(inputs)
        return evaluate(inputs, point)

    monkeypatch.setattr("conformance.diagnosis.mistakes.backward_pass.evaluate", counted)
    assert names(gradients.GradientsHalved) == ["gradients-halved"]
    counts = Counter(map(id, begun))  # the failing problem is one of the battery, too
    assert len(counts) > 1
    assert max(counts.values()) <= 2


def test_few_wrong_passes_are_acted_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong gradients of sizes that all differ come first: they refute most wrong passes."""
    acted: list[Any] = []

    def counted(right: golden.Run, inputs: Inputs, edits: tuple[golden.Edit, ...]) -> Gradients:
        acted.append(edits)
        return gradients_with(right, inputs, edits)

    monkeypatch.setattr("conformance.diagnosis.backward.gradients_with", counted)
    assert names(gradients.GradientsHalved) == ["gradients-halved"]
    counts = Counter(map(id, acted))
    assert sum(count > 1 for count in counts.values()) < len(counts) / 4


def cut(*names: str, inputs: str) -> Candidate:
    """A layer through whose tokens, matrices or biases of some names nothing flows back."""

    def build(geometry: conformance.Geometry, weights: conformance.ProjectionWeights) -> Any:
        def projected(tokens: Tensor, role: str) -> Tensor:
            given = {"": tokens, "_matrix": getattr(weights, role[0])}
            given["_bias"] = getattr(weights, f"{role[0]}_bias")
            for part, tensor in given.items():
                if f"{role}{part}" in names and tensor is not None:
                    given[part] = tensor.detach()
            return torch.nn.functional.linear(given[""], given["_matrix"], given["_bias"])

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            tokens = {"query": query, "key": key, "value": value}
            heads = [
                projected(each, role).unflatten(-1, (geometry.num_heads, -1)).transpose(1, 2)
                for role, each in tokens.items()
            ]
            scores = heads[0] @ heads[1].mT * geometry.head_size**-0.5
            return projected((scores.softmax(-1) @ heads[2]).transpose(1, 2).flatten(2), "output")

        return attend if inputs == "separate" else lambda x: attend(x, x, x)

    declared = {"masks": [], "causal": None, "empty_rows": "any", "features": ["gradients"]}
    return conformance.layer(name="cut", inputs=inputs, dtypes=["float32"], **declared)(build)


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (cut("key_matrix", inputs="separate"), "gradient of k matrix: zero"),
        (cut("query_bias", inputs="self"), "gradient of bias of q: zero"),
        (cut("value", inputs="self"), "gradient of value's tokens: zero"),
        (
            cut("key", "query_matrix", inputs="self"),
            "gradients of key's tokens and the q matrix: zero",
        ),
    ],
    ids=["matrix", "bias", "shared tokens", "two"],
)
def test_what_is_cut_off_in_a_layer_is_read_at_once(candidate: Candidate, name: str) -> None:
    """Matrices, biases and tokens by themselves, of tokens that are read thrice each part."""
    diagnostician = BackwardDiagnostician(Subject(candidate, "float32"))
    shown = diagnostician.observed[0].problem
    (entry,) = diagnostician.explain("gradients.golden", shown)
    assert entry["name"] == name


@pytest.mark.parametrize(("order", "name"), [(-1, "unknown-mistake"), (1, "sinks-wrong-backward")])
def test_an_answer_that_is_wrong_with_sinks_does_not_blame_the_backward_pass(
    order: int, name: str
) -> None:
    """Sinks that reach the wrong heads make the answer wrong, and no gradient's name is right."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if sinks is not None:
            column = (sinks if order > 0 else sinks.flip(0)).reshape(1, -1, 1, 1)
            scores = torch.cat([scores, column.expand(*scores.shape[:3], 1)], -1)
        return torch.softmax(scores, -1)[..., : key.shape[-2]] @ value

    candidate = core(attend, **{**BARE_FLOAT32, "features": ["sinks"]})
    subject = Subject(candidate, "float32")
    entries = BackwardDiagnostician(subject).explain("gradients.sinks", problem(sinks=True))
    assert [entry["name"] for entry in entries] == [name]


def test_a_gradient_that_is_wrong_with_dropout_is_asked_for_without_other_options() -> None:
    """Neighbours that drop weights, too, say that it is not wrong with any dropout."""
    subject = Subject(threes.GradientOfValueWithDropoutInWindow, "float32")
    shown = observe_gradients(subject, problem(dropout=HARDLY, window=(1, 1), scale=0.3))
    assert shown is not None
    assert shown.wrong == ("value",)
    further = further_gradients(subject, [shown])
    right = [one.problem for one in further if one.problem.dropout and not one.wrong]
    assert any(one.window is None for one in right)
    assert any(one.scale is None for one in right)


def unscaled_in_tiles(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
    """Sums that are not rescaled, and a guarded division whose gradient is not."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    largest = torch.full_like(query[..., :1], -torch.inf)
    mixed, total = torch.zeros(()), torch.zeros(())
    for tile, values in zip(scores.split(4, -1), value.split(4, -2), strict=True):
        grown = torch.maximum(largest, tile.amax(-1, keepdim=True))
        finite = grown.masked_fill(torch.isneginf(grown), 0.0)
        powers = (tile - finite).exp()
        mixed = mixed + powers @ values
        total = total * (largest - finite).exp() + powers.sum(-1, keepdim=True)
        largest = grown
    return torch.where(total > 0.0, mixed / total, 0.0)


def test_gradients_where_no_wrong_answer_is_made_are_another_mistake() -> None:
    """One tile is answered rightly: NaN in the gradients of an empty row is no sum's doing."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        return unscaled_in_tiles(query, key, value, keep)

    candidate = core(attend, masks=["keep"], causal=None, features=["gradients"])
    only = ("numerics.golden", "gradients.golden", "gradients.empty-row-finite")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    results = [run.run(planned) for planned in run.planned()]
    named = {one.id: [entry["name"] for entry in one.diagnosis] for one in results}
    assert named["numerics.golden"] == named["gradients.golden"] == ["accumulator-not-rescaled"]
    assert named["gradients.empty-row-finite"] == []


def test_gradients_of_a_cache_that_the_clause_draws_have_the_cause_of_the_answers() -> None:
    """The problem itself has no cache: what goes wrong with one is made all the same."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Tensor:
        if past_key is not None and past_value is not None:
            key, value = torch.cat([key, past_key], 2), torch.cat([value, past_value], 2)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
        hidden = ones.triu(1 + key.shape[2] - query.shape[2]) & causal
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    candidate = core(
        attend,
        masks=[],
        causal="bottom-right",
        features=["gradients", "kv_cache"],
        empty_rows="any",
    )
    only = ("cache.golden", "gradients.cache")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    results = [run.run(planned) for planned in run.planned()]
    named = {one.id: [entry["name"] for entry in one.diagnosis] for one in results}
    assert named["cache.golden"] == named["gradients.cache"] == ["cache-behind-new-keys"]


def test_gradients_where_values_are_zero_have_the_cause_of_the_answers() -> None:
    """Weights that change no answer there change the gradient of the values."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        scores = query @ key.mT
        if keep is not None:
            scores = scores + (1.0 - keep.to(scores.dtype)) * -100.0
        return (scores * query.shape[-1] ** -0.5).softmax(-1) @ value

    candidate = core(attend, masks=["keep"], features=["gradients"], causal=None, empty_rows="any")
    only = ("mask.golden", "gradients.golden")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    names = [[one["name"] for one in run.run(planned).diagnosis] for planned in run.planned()]
    assert names == [["mask-adds-100-before-scale"]] * len(only)


def test_what_cannot_be_copied_passes_nothing_anew() -> None:
    """A clause that wants a refusal does not take ours, for want of a copy, for the candidate's."""

    def accepting(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        count = min(key.shape[2], value.shape[2])
        scores = query @ key[:, :, :count].mT * query.shape[-1] ** -0.5
        return scores.softmax(-1) @ value[:, :, :count]

    subject = Subject(core(accepting, **BARE_FLOAT32), "float32")
    assert not passes_anew(subject, CLAUSES["shape.rejects-mismatch"], problem())
