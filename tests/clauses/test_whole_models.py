"""Whole models: right ones conform, and each wrong one fails the clause that it breaks alone."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from little_graphs import node, saved, tensor
from onnx import GraphProto, NodeProto, TensorProto
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from whole_models import grouped_model, not_passed, of_ids, results, token_graph

import conformance
from candidates.broken.whole_models import SOURCES_APART, another_source, made
from candidates.models import BROKEN, MODELS
from candidates.models.cached import SOURCES
from candidates.models.transformer import Encoder, Shape
from candidates.models.wrong_models import EMPTY_IS_NAN, RIGHT, WRONG
from conformance.base.profile import PROFILES
from conformance.clauses.registry import all_clauses
from conformance.clauses.whole_model_parts import _alone_in_its_options, _first_from_source
from conformance.clauses.whole_models import allowed_differences, model_of
from conformance.declare.candidate import Candidate
from conformance.graphs.process import DEFAULT, Feeds, Setting
from conformance.graphs.protocol import Arrays
from conformance.models.torch_model import TorchEngine, open_torch_model
from conformance.models.whole_model import WholeModel
from conformance.running.runner import CandidateRun

# A consequence of a mistake of others: it is a SHOULD.
FINITE = "model.empty-item-finite"
IN_PLACE = "model.sites-in-place"
CACHED = "model.cache-equals-full"
# The clauses that pass at least: pictures have no padding, no mask and one size.
FEWEST = {"vision": 3}


@functools.cache
def wrong(name: str) -> dict[str, str]:
    """What a wrong model does not pass; remembered."""
    return not_passed(results(made(WRONG[name].source, name)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MODELS)
def test_right_models_conform(name: str) -> None:
    """Nothing fails but for rows of minus infinity, and nothing that applies is left untested."""
    candidate = made(MODELS[name], name)
    found = results(candidate)
    assert candidate.kind == "model"
    assert set(not_passed(found)) == ({FINITE} if name == "encoder-written" else set())
    assert sum(result.status == "passed" for result in found) >= FEWEST.get(name, 7)


def test_a_right_model_with_positions_conforms() -> None:
    """Padding on the left is asked about where positions are an input."""
    found = results(made(RIGHT, "Right"))
    assert not_passed(found) == {}
    assert "passed" in {result.status for result in found if result.id == "model.left-padding"}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_fails_what_it_breaks(name: str) -> None:
    """Its own clause, those that it must show in as well, and no other."""
    broken = WRONG[name]
    assert set(wrong(name)) - {FINITE} == {broken.clause, *broken.also}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [name for name, one in WRONG.items() if one.site is not None])
def test_the_attention_to_blame_is_named(name: str) -> None:
    """Where one layer is wrong the message says which."""
    broken = WRONG[name]
    assert (
        f"attention #{broken.site} (layers.{broken.site}.attention)" in wrong(name)[broken.clause]
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SOURCES)
def test_a_wrong_cache_is_seen(name: str) -> None:
    """What comes after some tokens is answered otherwise than all at once, and nothing else."""
    found = results(made(SOURCES[name], name))
    wrong = set() if name == "CachedDecoder" else {CACHED}
    assert set(not_passed(found)) == wrong
    assert CACHED in {result.id for result in found if result.status != "not-applicable"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [name for name, one in BROKEN.items() if one.wrong == (1,)])
def test_a_wrong_attention_is_seen_in_its_place(name: str) -> None:
    """On the model's own activations, and its place is told."""
    found = not_passed(results(made(BROKEN[name].source, name), IN_PLACE))
    assert "in the model attention #1 (" in found[IN_PLACE]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SOURCES_APART)
def test_a_model_fails_against_another_source_alone(name: str) -> None:
    """The module differs in one part; the model agrees with itself in all other clauses."""
    part, _ = SOURCES_APART[name]
    assert set(not_passed(results(another_source(name, part)))) == {"model.matches-source"}


def test_an_answer_that_is_nan_is_seen() -> None:
    """An item of nothing but padding is answered with NaN: a SHOULD."""
    assert set(not_passed(results(made(EMPTY_IS_NAN.source, "EmptyIsNan")))) == {FINITE}


def test_each_clause_has_three_models_that_it_catches() -> None:
    """But for what follows from other mistakes."""
    own = Counter(one.clause for one in WRONG.values())
    asked = {clause.id for clause in all_clauses() if clause.family == "model"}
    # Of modules alone: see tests/models.
    of_modules = {"model.heads-by-token", "model.leaves-no-trace", "model.cache-in-order"}
    assert asked - set(own) == {FINITE, IN_PLACE, CACHED, "model.matches-source", *of_modules}
    assert len(SOURCES) >= 4  # one of them right
    assert len(SOURCES_APART) >= 3
    assert sum(one.wrong == (1,) for one in BROKEN.values()) >= 3  # of attentions in place
    assert min(own.values()) >= 3


def test_allowed_differences_are_roundings() -> None:
    """What is allowed is far below any mistake: some thousand units in the last place."""
    candidate = made(RIGHT, "Right")
    run = CandidateRun(candidate, profile=PROFILES["quick"], only=("model.padding-contents",))
    (result,) = [run.run(planned) for planned in run.planned()]
    assert result.margin is not None
    assert result.margin <= 0.1
    model = model_of(candidate)
    call = model.call(2, (5, 5), None, 3)
    answer = model.run(call)["answer"]
    again = model.run(model.with_tokens(call, np.ones((2, 5), bool), 4))["answer"]
    assert float(np.abs(answer - again).max()) > 0.1


def test_other_candidates_are_not_asked() -> None:
    """Clauses about whole models are for models alone, and models are asked nothing else."""
    families = {
        planned.family
        for planned in CandidateRun(made(RIGHT, "Right"), profile=PROFILES["quick"]).planned()
    }
    assert families == {"model"}


class Forgetful(TorchEngine):
    """Runs a module, and finds its first attention in no call but the first."""

    def run(self, feeds: Feeds, *, setting: Setting = DEFAULT, taps: Sequence[str] = ()) -> Arrays:
        """Without that attention where weights are nudged, or where it is a source."""
        kept = [name for name in taps if name != "attention #0" or not self.forgets(setting)]
        return super().run(feeds, setting=setting, taps=kept)

    def forgets(self, setting: Setting) -> bool:
        """Whether the attention is missing."""
        return bool(setting.nudge) or self.shown == "source"


def forgetful(name: str) -> WholeModel:
    torch.manual_seed(0)
    opened = open_torch_model(Encoder(Shape()), name)
    assert opened is not None
    engine = Forgetful(opened.engine.module, opened.engine.calling, name)
    engine.sites = opened.engine.sites
    return dataclasses.replace(opened.model, engine=engine)


@pytest.mark.parametrize("shown", ["model", "source"])
def test_an_attention_that_a_call_does_not_show_is_no_first(shown: str) -> None:
    """Neither where two models are compared, nor where it lacks a bound: the next one is named."""
    model, source = forgetful("model"), forgetful(shown)
    with torch.no_grad():
        for weight in source.engine.module.parameters():  # type: ignore[attr-defined]  # a module
            weight.mul_(1.5)
    call = model.call(2, (5, 5), None, 1)
    answers = model.run(call, taps=["attention #0", "attention #1"])
    assert "attention #0" in answers
    assert "attention #0" not in allowed_differences(model, call, answers, ["attention #0"])
    assert _first_from_source(model, source, call) == 1


class Latents(nn.Module):
    """A few vectors attend to tokens under their mask, then to each other without one."""

    def __init__(self, count: int | None = 3) -> None:
        super().__init__()
        self.table, self.latents = nn.Embedding(20, 16), nn.Parameter(torch.randn(3, 16))
        self.first, self.second, self.count = nn.Linear(16, 16), nn.Linear(16, 16), count

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, 3, 16]``, or ``[B, L, 16]`` where every token is a latent."""
        tokens = self.table(input_ids)
        latents = tokens if self.count is None else self.latents.expand(len(tokens), 3, 16)
        keep = attention_mask.bool()[:, None, None]
        mixed = self._attended(self.first(latents), tokens, attn_mask=keep)
        return self._attended(self.second(mixed), mixed)

    def _attended(self, query: Tensor, key: Tensor, **masks: Tensor) -> Tensor:
        parts = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in (query, key, 2 * key))
        answer = scaled_dot_product_attention(*parts, **masks)
        return answer.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("count", "status"), [(3, "passed"), (None, "failed")])
def test_latents_need_no_mask(count: int | None, status: str) -> None:
    """Their number does not follow that of tokens; what attends to every token needs one."""
    torch.manual_seed(0)
    whole, *_ = conformance.model(Latents(count))
    (result,) = results(whole, "model.mask-reaches-all")
    assert result.status == status


def exchanged_pasts(nodes: Sequence[NodeProto], _graph: GraphProto) -> None:
    """The second attention reads the cache of the third, and the other way round."""
    second, third = nodes[1:3]
    second.input[3], third.input[3] = third.input[3], second.input[3]


def rotary_off(nodes: Sequence[NodeProto], _graph: GraphProto) -> None:
    """The second attention turns nothing."""
    next(own for own in nodes[1].attribute if own.name == "do_rotary").i = 0


def window_of_one(nodes: Sequence[NodeProto], _graph: GraphProto) -> None:
    """The second attention sees few earlier keys."""
    next(own for own in nodes[1].attribute if own.name == "local_window_size").i = 2


def lengths_off(nodes: Sequence[NodeProto], graph: GraphProto) -> None:
    """The second attention is told of a token less, where there are more than one."""
    nodes[1].input[5] = "fewer"
    made = [
        node("Cast", "last", "wide", to=TensorProto.INT64),
        node("Sub", "wide one", "lower"),
        node("Max", "lower none", "kept"),
        node("Cast", "kept", "fewer", to=TensorProto.INT32),
    ]
    graph.initializer.append(tensor("none", np.array([0])))
    for each in reversed(made):
        graph.node.insert(3, each)


def grouped(
    folder: Path, change: Callable[[Sequence[NodeProto], GraphProto], None] | None
) -> Candidate:
    """The whole model of grouped attentions in a file, changed."""
    graph = grouped_model()
    nodes = [each for each in graph.graph.node if each.op_type == "GroupQueryAttention"]
    if change is not None:
        change(nodes, graph.graph)
    whole, *_ = conformance.model(saved(graph, folder / "grouped.onnx"))
    return whole


def test_grouped_attention_is_asked_as_its_operator_allows(tmp_path: Path) -> None:
    """With caches, one item or one token at once, and padding on the right alone."""
    whole = grouped(tmp_path, None)
    found = {result.id: result for result in results(whole)}
    assert not not_passed(list(found.values()))
    assert found[CACHED].status == found[IN_PLACE].status == "passed"
    assert found[FINITE].status == "not-applicable"
    assert any("padding on the right alone" in warning for warning in whole.warnings)


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        (exchanged_pasts, CACHED),
        (rotary_off, IN_PLACE),
        (window_of_one, IN_PLACE),
        (lengths_off, IN_PLACE),
    ],
)
def test_what_one_grouped_attention_has_of_its_own_is_blamed(
    change: Callable[[Sequence[NodeProto], GraphProto], None], clause: str, tmp_path: Path
) -> None:
    """The second of three, whatever the mistake."""
    (result,) = results(grouped(tmp_path, change), clause)
    assert result.status == "failed"
    assert "attention #1" in str(result.violation and result.violation.message)


@pytest.mark.parametrize(
    ("name", "values", "odd"),
    [
        ("do_rotary", [1, 0, 1], 1),
        ("do_rotary", [1, 1, 1, 0], None),
        ("do_rotary", [0, 1, 1, 1], 0),
        ("do_rotary", [1, 1, 1, 0, 1, 1, 1, 0], None),
        ("local_window_size", [4, -1, 4], None),
        ("local_window_size", [-1, 4, -1, -1], 1),
        ("local_window_size", [4, 4, 4, 4, 4, -1], None),
        ("local_window_size", [4, 4, 8, 4], 2),
    ],
)
def test_patterns_of_models_are_no_mistakes(name: str, values: list[int], odd: int | None) -> None:
    """Every fourth without rotary positions, whole ones between windows: those are meant."""
    described = [{"index": at, "options": {name: own}} for at, own in enumerate(values)]
    found = _alone_in_its_options(described)  # type: ignore[arg-type]  # as much as is read
    assert (found and found[0]) == odd


def between_integers(folder: Path, *, back: float = 1 / 100, most: float = 8.0) -> Candidate:
    """The whole model of a graph whose scores and weights become integers of known steps.

    Those of weights are turned back by the step ``back``. Onnxruntime 1.31.1 makes 0 of a weight
    of 1 where the step is 1/200 or less: that fails, as it should.
    """
    step = most / 127
    middle = [
        node("Mul", "scores half", "halves"),
        node("QuantizeLinear", "halves step whole", "whole_scores"),
        node("DequantizeLinear", "whole_scores step whole", "scaled"),
        node("Softmax", "scaled", "exact", axis=-1),
        node("QuantizeLinear", "exact part none", "whole_weights"),
        node("DequantizeLinear", "whole_weights back none", "weights"),
    ]
    numbers = {"step": step, "part": 1 / 100, "back": back}
    tensors = [tensor(name, np.array(own, np.float32)) for name, own in numbers.items()]
    tensors += [tensor("whole", np.array(0, np.int8)), tensor("none", np.array(0, np.uint8))]
    graph = of_ids(token_graph(middle, tensors=tensors))
    whole, *_ = conformance.model(saved(graph, folder / "steps.onnx"))
    return whole


def test_attention_between_integers_of_known_steps_is_judged(tmp_path: Path) -> None:
    """Alone without the steps, in its place by how far they may move its answer."""
    whole = between_integers(tmp_path)
    model = model_of(whole)
    assert (whole.unjudged, model.described[0]["scale"], list(model.cores)) == ("", 0.5, [0])
    (result,) = results(whole, IN_PLACE)
    assert (result.status, result.binding > 0) == ("passed", True)


def test_integers_that_are_turned_back_by_another_step_are_seen(tmp_path: Path) -> None:
    """By what leaves the attention where the model runs."""
    (result,) = results(between_integers(tmp_path, back=1.5 / 100), IN_PLACE)
    assert result.status == "failed"
