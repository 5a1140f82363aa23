"""Wrong gradients are named after the backward pass that gives them, or the wrong answers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from examples import BARE_FLOAT32, CLAUSES, core, layer, problem
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import conformance
from candidates.broken import gradients, modified_gradients, threes, weight_gradients
from candidates.broken._backward import HandWritten, HandWrittenLayer, Steps
from candidates.eager import EagerLayer
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


@pytest.mark.nightly
def test_what_no_name_explains_is_told_by_facts() -> None:
    """An unknown mistake comes with the gradients that it makes wrong."""

    class NanInEverySecondRow(HandWritten):
        """Every second query gets the gradient NaN where there are more than four keys."""

        def query_gradient(self, steps: Steps, scores: Tensor) -> Tensor:
            found = super().query_gradient(steps, scores)
            if scores.shape[-1] > 4:
                found[:, :, ::2] = math.nan
            return found

    subject = Subject(core(NanInEverySecondRow()), "float32")
    (entry,) = BackwardDiagnostician(subject).explain("gradients.golden", problem())
    assert entry["name"] == "unknown-mistake"
    assert entry["facts"]["gradients"] == ["query"]
    assert entry["facts"]["finite"] is False


@pytest.mark.nightly
def test_gradients_that_are_no_numbers_are_said_to_be_behind_whole_tiles() -> None:
    """What a short tile leaves is NaN: by the size of the tile, and only where a whole one is."""
    name = "gradient of query: tokens behind the last whole tile of 16 are NaN"
    assert names(gradients.NanBehindTheLastTile) == [name]


@pytest.mark.nightly
def test_weights_that_pass_a_softmax_in_each_tile_are_read() -> None:
    """The gradient of the value alone is made of them."""

    class SoftmaxOfTiles(HandWritten):
        """The weights of each tile of 16 keys meet what flows back through a softmax."""

        def value_gradient(self, steps: Steps, weights: Tensor) -> Tensor:
            tiles = [tile.softmax(-1) for tile in weights.split(16, -1)]
            return super().value_gradient(steps, torch.cat(tiles, -1))

    name = "gradient of value: the weights of each tile of 16 keys go through a softmax once more"
    assert names(core(SoftmaxOfTiles())) == [name]


@pytest.mark.nightly
def test_gradients_that_are_rounded_are_said_to_be() -> None:
    """The format of gradients is said where the right ones, rounded to it, are all there is."""
    name = "gradients of query, key, value, bias: rounded to bfloat16"
    assert names(gradients.GradientsInBfloat16) == [name]


class StoredLogSumExp(torch.autograd.Function):
    """Weights made anew behind the forward pass, of a log-sum-exp in the precision of the query."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        """Attend in float32."""
        query, key, value = (tensor.float() for tensor in tensors)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        output = (scores.softmax(-1) @ value).to(tensors[0].dtype)
        total = scores.logsumexp(-1, keepdim=True).to(output.dtype)
        ctx.save_for_backward(*tensors, output, total)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, ...]:
        """The gradients of query, key and value."""
        query, key, value, output, total = (tensor.float() for tensor in ctx.saved_tensors)
        scale = query.shape[-1] ** -0.5
        weights = (query @ key.mT * scale - total).exp()
        row = (upstream * output).sum(-1, keepdim=True)
        scores = weights * (upstream.float() @ value.mT - row)
        found = scores @ key * scale, scores.mT @ query * scale, weights.mT @ upstream.float()
        return tuple(each.to(upstream.dtype) for each in found)


@pytest.mark.nightly
def test_numbers_of_their_own_dtype_are_not_said_to_be_rounded_to_it() -> None:
    """Every gradient of half precision is a number of it: that explains nothing."""
    promises = {**BARE_FLOAT32, "dtypes": ["bfloat16"], "features": ["gradients"]}
    made = core(StoredLogSumExp.apply, scores="fused", **promises)
    one = {"num_heads": 1, "num_kv_heads": 1, "query_length": 1, "head_size": 1}
    sizes = {**one, "batch": 2, "value_head_size": 1, "key_length": 33}
    subject = Subject(made, "bfloat16")
    shown = problem(**sizes, dtype="bfloat16", values="normal", seed=59)
    (entry,) = BackwardDiagnostician(subject).explain("gradients.golden", shown)
    assert "rounded to bfloat16" not in entry["name"]
    assert entry["facts"]["gradients"] == ["value"]


@pytest.mark.nightly  # those of answers are asked in each run, by the same code
def test_conditions_of_gradients_hold_at_sizes_that_nobody_saw() -> None:
    """Of three heads alone, not of any odd number of them."""

    def three(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        factor = 1.5 if query.shape[1] == 3 else 1.0
        grown = value * factor + (value * (1.0 - factor)).detach()
        return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ grown

    promises = {**BARE_FLOAT32, "features": ["gradients"]}
    sizes = {"batch": 1, "head_size": 4, "value_head_size": 4, "query_length": 7, "key_length": 5}
    subject = Subject(core(three, **promises, geometry=sizes), "float32")
    (entry,) = BackwardDiagnostician(subject).explain("gradients.golden", problem())
    assert entry["text"].startswith("the gradient of the value is 1.5 times what it must be")
    assert "(only with exactly 3 heads)" in entry["text"]


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


@pytest.mark.nightly
def test_gradients_of_the_one_wrong_answer_have_its_cause() -> None:
    """Single queries, which no problem of the battery has beside a mask, lose their mask."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=keep if query.shape[2] > 1 else None
        )

    candidate = core(attend, masks=["keep"], features=["gradients"], causal=None, empty_rows="any")
    only = ("gradients.options",)
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    (result,) = [run.run(planned) for planned in run.planned()]
    assert [entry["name"] for entry in result.diagnosis] == ["mask-ignored"]


@pytest.mark.nightly
def test_gradients_of_what_two_options_make_wrong_have_the_cause_of_the_answers() -> None:
    """The battery has no call with both, and the failing problem's own answer is right."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        logits = query @ key.mT * query.shape[-1] ** -0.5
        if sinks is not None:
            logits = torch.cat([logits, sinks.view(1, -1, 1, 1).expand_as(logits[..., :1])], -1)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        return logits.softmax(-1)[..., : key.shape[2]] @ value

    features = ["gradients", "softcap", "sinks"]
    candidate = core(attend, masks=[], features=features, causal=None)
    only = ("gradients.golden", "gradients.sinks")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    results = [run.run(planned) for planned in run.planned()]
    texts = {one["text"] for result in results for one in result.diagnosis}
    (text,) = texts
    assert text.startswith("the sinks are under the softcap")


@pytest.mark.nightly
def test_a_gradient_of_what_is_not_read_is_no_second_cause() -> None:
    """The keys of a layer that reads queries in their place alone require none."""

    def builder(*given: Any) -> Any:
        right = EagerLayer(*given)

        def forward(query: Tensor, key: Tensor, value: Tensor) -> Any:
            return right(query, query if query.shape == key.shape else key, value)

        return forward

    only = ("numerics.golden", "gradients.alone")
    wrong = conformance.layer()(builder)
    run = CandidateRun(wrong, profile=PROFILES["quick"], only=only, dtypes=("float32",))
    alone, shown = sorted((run.run(one) for one in run.planned()), key=lambda one: one.id)
    assert "though key alone requires one" in alone.reason
    name = shown.diagnosis[0]["name"]
    assert (name, run.explained_by(alone)) == ("query-used-for-key", name)


def test_what_cannot_be_copied_passes_nothing_anew() -> None:
    """A clause that wants a refusal does not take ours, for want of a copy, for the candidate's."""

    def accepting(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        count = min(key.shape[2], value.shape[2])
        scores = query @ key[:, :, :count].mT * query.shape[-1] ** -0.5
        return scores.softmax(-1) @ value[:, :, :count]

    subject = Subject(core(accepting, **BARE_FLOAT32), "float32")
    assert not passes_anew(subject, CLAUSES["shape.rejects-mismatch"], problem())
