"""A torch module as a whole model: recognised, described, run, and its attentions as candidates."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import conformance
from candidates.exports import Input, Source, by_tracing
from candidates.models.transformer import Decoder, Encoder, EncoderDecoder, Mistake, Shape
from conformance import UsageError
from conformance.declare.candidate import Candidate
from conformance.declare.declaration import WHOLE_MODEL
from conformance.graphs.process import Setting
from conformance.graphs.protocol import GraphRefused
from conformance.identification.opening import resolve_one
from conformance.models.recognition import may_be_model
from conformance.models.torch_model import (
    TorchModel,
    open_torch_model,
    torch_model_candidates,
)

MODELS = """
import torch
from torch import nn
from candidates.models.transformer import Encoder, Shape

torch.manual_seed(0)
model = Encoder(Shape())
projections = nn.ModuleList([nn.MultiheadAttention(16, 4, batch_first=True)])

def build():
    return Encoder(Shape())

def build_parts():
    return projections
"""


def opened(module: nn.Module) -> TorchModel:
    torch.manual_seed(0)
    made = open_torch_model(module, "m")
    assert made is not None
    return made


class NormedAttention(nn.Module):
    """One attention with a norm of its heads: a layer, no model."""

    def __init__(self) -> None:
        super().__init__()
        self.projections, self.output = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        """As a module is called."""
        heads = [p.unflatten(-1, (4, 4)).transpose(1, 2) for p in self.projections(x).chunk(3, -1)]
        query, key, value = self.norm(heads[0]), self.norm(heads[1]), heads[2]
        mixed = ((query @ key.mT * 0.5).softmax(-1) @ value).transpose(1, 2).flatten(2)
        answer: Tensor = self.output(mixed)
        return answer


@pytest.mark.parametrize(
    "module",
    [
        Encoder(Shape()),
        nn.TransformerEncoderLayer(16, 4, 32),
        nn.TransformerDecoderLayer(16, 4, 32, batch_first=True),
    ],
    ids=["encoder", "layer", "crossing layer"],
)
def test_more_than_one_attention_is_a_model(module: nn.Module) -> None:
    """Tokens, or a residual with a norm and a bend, or two attentions."""
    assert may_be_model(module)
    assert open_torch_model(module, "m") is not None


@pytest.mark.parametrize(
    "module", [nn.MultiheadAttention(16, 4, batch_first=True), NormedAttention()]
)
def test_one_attention_is_none(module: nn.Module) -> None:
    """With its projections, and with norms of its heads."""
    assert not may_be_model(module) or open_torch_model(module, "m") is None


def test_each_attention_is_described() -> None:
    """Scope, heads, masks and the inputs that reach them, causality, and which are equal."""
    sites = opened(EncoderDecoder(Shape(kv_heads=2))).model.described
    first, _, own, cross, *_ = sites
    assert [entry["scope"] for entry in sites][2:4] == [
        "decoder.layers.0.attention",
        "decoder.layers.0.cross",
    ]
    assert (first["heads"], first["kv_heads"], first["scale"]) == (4, 2, 0.5)
    assert (own["causal"], own["mask_inputs"], own["same_as"]) == (True, [], [4])
    assert (cross["causal"], cross["mask_inputs"]) == (False, ["attention_mask"])
    assert first["same_as"] == [1, 3, 5]


def test_weights_are_nudged_for_one_run_alone() -> None:
    """The answer moves by roundings, otherwise for each seed; the module stays as it is."""
    made = opened(Encoder(Shape()))
    before = [weight.clone() for weight in made.engine.module.parameters()]
    call = made.model.call(2, (5, 5), None, 1)
    plain = made.model.run(call)["output"]
    nudged = [made.model.run(call, setting=Setting(nudge=seed))["output"] for seed in (1, 2, 1)]
    assert all(0 < np.abs(answer - plain).max() < 1e-4 for answer in nudged)
    assert np.abs(nudged[0] - nudged[1]).max() > 0
    np.testing.assert_array_equal(nudged[0], nudged[2])
    assert all(map(torch.equal, before, made.engine.module.parameters()))


def test_attentions_answer_in_their_places() -> None:
    """A tap is the answer of the attention, and what entered it is there, too."""
    made = opened(Decoder(Shape(kv_heads=2)))
    keep = np.array([[True, True, True, False], [True] * 4])
    call = made.model.call(2, (4, 4), keep, 1)
    tapped = made.engine.run(call.feeds, taps=["attention #1"])["attention #1"]
    inside = dict(made.engine.in_place(call.feeds))[1]
    np.testing.assert_array_equal(tapped, inside.answer)
    assert inside.query.shape == (2, 4, 4, 4)
    assert inside.key.shape == (2, 2, 4, 4)
    assert inside.keep is not None
    np.testing.assert_array_equal(inside.keep[0, 0, -1], [True, True, True, False])


def test_an_exception_is_a_refusal() -> None:
    """Lengths beyond the table of positions are refused in the module's words."""
    made = opened(Encoder(Shape()))
    assert made.model.taken == {"length": (1, 2, 3, 5, 8, 13, 21)}
    assert made.model.refused == ()
    with pytest.raises(GraphRefused, match="IndexError"):
        made.model.run(made.model.call(1, (34, 34), None, 1))


def test_a_target_is_the_model_and_its_distinct_attentions(tmp_path: Path) -> None:
    """A builder's model, an instance, one attention by number, and parts of both by their path."""
    file = tmp_path / "whole_models_here.py"
    file.write_text(MODELS, encoding="utf-8")
    names = [(one.name, one.kind, one.target) for one in resolve_one(f"{file}:build")]
    assert names == [
        ("build", WHOLE_MODEL, f"{file}:build"),
        ("build#0", "core", f"{file}:build#0"),
    ]
    (second,) = resolve_one(f"{file}:model#1")
    assert second.site is not None
    assert (second.name, second.site["scope"]) == ("model#1", "tower.layers.1.attention")
    for path in ("projections.0", "build_parts.0"):
        (part,) = resolve_one(f"{file}:{path}")
        assert (part.kind, part.target) == ("layer", f"{file}:{path}")
    with pytest.raises(UsageError, match="no attention #2: it has 2"):
        resolve_one(f"{file}:model#2")


def test_another_scale_of_one_layer_is_no_promise() -> None:
    """The first layer has the standard's, so the second shall have it, too."""
    made = opened(Encoder(Shape(), [Mistake(), Mistake(scale=1.0)]))
    cores = [core for _, core in torch_model_candidates(made, "m")[1:]]
    assert len(cores) == 2
    assert all(core.declaration.semantics == conformance.STANDARD for core in cores)


class TwoInOne(nn.Module):
    """Two attentions in one forward; the scores of the first are a sum of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.parts = nn.Embedding(20, 16), nn.Linear(16, 16 * 5)

    def forward(self, input_ids: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, L, 16]``."""
        heads = (
            part.unflatten(-1, (4, 4)).transpose(1, 2)
            for part in self.parts(self.table(input_ids)).chunk(5, -1)
        )
        query, both, query_2, key, value = heads
        first = (query @ both.mT + query_2 @ key.mT).softmax(-1) @ both
        second = (query_2 @ key.mT * 0.5).softmax(-1) @ value
        return (first + second).transpose(1, 2).flatten(2)


def test_what_cannot_be_judged_alone_keeps_its_place() -> None:
    """The one attention that can is the second of its module, in every later call, too."""
    made = opened(TwoInOne())
    assert [site.place for site in made.engine.sites] == [("", 1)]
    assert "several products" in made.uncut[0].reason
    call = made.model.call(2, (5, 5), None, 1)
    inside = dict(made.engine.in_place(call.feeds))[0]
    tapped = made.engine.run(call.feeds, taps=["attention #0"])["attention #0"]
    np.testing.assert_array_equal(inside.answer, tapped)
    scores = torch.from_numpy(inside.query @ inside.key.swapaxes(2, 3) * 0.5)
    expected = scores.softmax(-1) @ torch.from_numpy(inside.value)
    torch.testing.assert_close(torch.from_numpy(inside.answer), expected)
    assert not np.array_equal(inside.key, inside.value)


class Choosy(nn.Module):
    """An encoder that refuses some calls."""

    def __init__(self, refuses: Callable[[Tensor], Tensor | bool]) -> None:
        super().__init__()
        self.encoder, self.refuses = Encoder(Shape()), refuses

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """As an encoder is called."""
        if attention_mask is not None and self.refuses(attention_mask):
            msg = "not such a mask"
            raise ValueError(msg)
        answer: Tensor = self.encoder(input_ids, attention_mask)
        return answer


@pytest.mark.parametrize(
    "refuses",
    [lambda mask: not mask.all(), lambda mask: not mask[:, 0].all()],
    ids=["padding", "padding on the left"],
)
def test_a_model_that_refuses_padding_is_a_model(refuses: Callable[[Tensor], bool]) -> None:
    """It is read without, its mask keeps the polarity of its name; the clauses will ask."""
    made = opened(Choosy(refuses))
    assert [(entry.role, entry.hides) for entry in made.model.inputs] == [
        ("tokens", False),
        ("mask", False),
    ]
    assert len(made.engine.sites) == 2


def test_sizes_that_are_refused_together_are_a_reason() -> None:
    """Each alone is answered: the model as a whole is not judged, in one sentence."""
    module = Choosy(lambda mask: mask.shape[0] > 2 and mask.shape[1] > 5)
    with pytest.raises(UsageError, match="it answers no batch of 3 of length 8: it says: ValueErr"):
        conformance.model(module)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"input_ids": {"role": "features", "shape": 16}}, r"\['input_ids'\] has the shape 16: gi"),
        ({"input_ids": {"role": "tokens", "vocabulary": 0}}, "has the vocabulary 0: give the numb"),
        ({"input_ids": 3}, r"inputs\['input_ids'\] is 3: give a role"),
        ({"input_ids": {}}, r"inputs\['input_ids'\] has no role: give one of tokens, mask"),
        ({"input_ids": {"role": "past"}}, r"inputs\['input_ids'\]: role is 'past'"),
        (["input_ids"], r"inputs is \['input_ids'\]: give a table"),
    ],
)
def test_what_is_said_of_inputs_is_checked_as_in_a_file(inputs: Any, sentence: str) -> None:
    """The same words are allowed, and a mistake is one sentence."""
    with pytest.raises(UsageError, match=sentence):
        conformance.model(Encoder(Shape()), inputs=inputs)


class Sometimes(Choosy):
    """Answers something more where there is padding, and nothing where there is too much."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # it is
        """As an encoder is called."""
        answer = self.encoder(input_ids, attention_mask)
        return {"states": answer} if attention_mask.all() else {"padded": answer}


def test_an_answer_that_is_missing_is_said() -> None:
    """It is a failure of the model, and none of the harness."""
    made = opened(Sometimes(bool))
    call = made.model.call(2, (4, 4), np.array([[True] * 4, [True] * 3 + [False]]), 1)
    assert made.model.misshapen(call, made.model.run(call)) == (
        "answers a batch of 2 of length 4 without states"
    )


class ScaledEarly(nn.Module):
    """Two attentions; the queries of the second are divided, then cut out of wider ones."""

    def __init__(self, divisor: float, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(40, 16), nn.LayerNorm(16)
        self.divisor, self.cut = divisor, cut
        self.first, self.second = nn.Linear(16, 48), nn.Linear(16, 64)

    def forward(self, input_ids: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, L, 16]``."""
        tokens = self.table(input_ids)
        query, key, value = map(self._heads, self.first(tokens).split(16, -1))
        tokens = self.norm(tokens + self._mixed(query * 0.5, key, value))
        query, key, value = map(self._heads, self.second(tokens).split([32, 16, 16], -1))
        return self._mixed(self.cut(query / self.divisor), key, value)

    def _heads(self, wide: Tensor) -> Tensor:
        return wide.reshape(*wide.shape[:2], 4, wide.shape[2] // 4).transpose(1, 2)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.transpose(2, 3)).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2)


def as_graph(module: nn.Module, folder: Path) -> tuple[Candidate, ...]:
    source = Source(
        name="early",
        module=module,
        inputs=(Input(name="input_ids", axes=("batch", "tokens"), kind="ids"),),
        outputs={"y": ("batch", "tokens", 16)},
    )
    return conformance.model(by_tracing(source, folder / "early.onnx"))


@pytest.mark.one_in(3)  # each choice is among them
@pytest.mark.parametrize(
    "judged", [lambda module, _: conformance.model(module), as_graph], ids=["module", "graph"]
)
@pytest.mark.parametrize(
    "cut",
    [lambda wide: wide[..., :4], lambda wide: wide.reshape(*wide.shape[:3], 2, 4).mean(3)],
    ids=["part", "mean"],
)
@pytest.mark.parametrize(("divisor", "scale"), [(2.0, "none"), (3.0, 1.5)])
def test_a_scale_before_heads_are_cut_out_is_one(
    divisor: float,
    scale: str | float,
    cut: Callable[[Tensor], Tensor],
    judged: Callable[..., tuple[Candidate, ...]],
    tmp_path: Path,
) -> None:
    """Alone the attention has none, and that is meant where the whole is the standard's.

    Else what it lacks beside the factor above is promised, which fails.
    """
    cores = judged(ScaledEarly(divisor, cut).eval(), tmp_path)[1:]
    scales = [core.declaration.semantics.scale for core in cores]
    assert scales == ["inverse-sqrt-head-size", scale if scale == "none" else pytest.approx(scale)]


class Spent(nn.Module):
    """An encoder that refuses all but its first calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.inner, self.calls = Encoder(Shape()), calls

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """As a model is called."""
        self.calls -= 1
        if self.calls < 0:
            msg = "no call is left"
            raise RuntimeError(msg)
        answer: Tensor = self.inner(input_ids, attention_mask)
        return answer


@pytest.mark.parametrize(
    ("calls", "which"),
    [
        (5, "it answers no call that was tried"),
        (6, "answered a call once, and not again"),
        (22, "answered a call once, and not again"),
    ],
)
def test_who_answers_a_call_once_alone_is_refused(calls: int, which: str) -> None:
    """Wherever its calls end, that is said: the look at its lengths raised."""
    with pytest.raises(UsageError, match=f"{which}: it says: RuntimeError: no call is left"):
        conformance.model(Spent(calls))


class Masked(nn.Module):
    """Two attentions to tokens whose mask has another sign, or is ignored."""

    def __init__(self, sign: int = 1) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(model_type="written-here")
        self.tokens, self.sign, self.is_causal = nn.Embedding(20, 16), sign, True
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Ids and a mask of 0 and 1, [B, L] -> [B, L, E]."""
        x = torch.as_tensor(self.tokens(input_ids))
        bias = torch.zeros(1, 1, 1, 1)
        if attention_mask is not None and self.sign:
            bias = (1 - attention_mask[:, None, None]) * (self.sign * -1e9)
        for layer in self.layers:
            q, k, v = (p.unflatten(-1, (4, 4)).transpose(1, 2) for p in layer(x).chunk(3, -1))
            mixed = (q @ k.mT * 0.5 + bias).softmax(-1) @ v
            x = x + mixed.transpose(1, 2).flatten(2)
        return x


@pytest.fixture(params=["library", "own"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether modules written here are of a library that documents its masks."""
    if request.param == "own":
        return ""
    mapping = {"MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": {"written-here": "Masked"}}
    made = {
        name: types.ModuleType(name)
        for name in ("transformers", "transformers.models", "transformers.models.auto")
    }
    made["transformers.models.auto.modeling_auto"] = types.SimpleNamespace(**mapping)  # type: ignore[assignment]
    made["transformers"].__dict__["PreTrainedModel"] = Masked
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return "transformers"


def test_a_mask_the_wrong_way_round_is_told(library: str) -> None:
    """Its sign is what the library documents; elsewhere it is believed. Both warn."""
    made = opened(Masked(sign=-1))
    (mask,) = (entry for entry in made.model.inputs if entry.role == "mask")
    assert mask.hides is not bool(library)
    (warning, *_) = torch_model_candidates(made, "m")[0][1].warnings
    assert "the wrong way round" in warning
    assert ("transformers documents" in warning) is bool(library)


def test_what_a_model_ignores_is_told(library: str) -> None:
    """A mask without any influence; a decoder, as its library says, that sees later tokens.

    A mask that the library documents is an input, so that clauses are asked about it.
    """
    model = opened(Masked(sign=0)).model
    warnings = model.warnings
    assert model.has_mask is bool(library)
    assert "attention_mask changes nothing in any attention" in warnings[0]
    assert [w.startswith("no attention is causal") for w in warnings[1:]] == [True] * bool(library)


def test_a_right_mask_is_no_warning() -> None:
    """What hides by 0 is as it is called."""
    assert opened(Masked()).model.warnings == ()
