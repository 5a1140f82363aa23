"""A layer is read through its projections: the way of its values, then queries and keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import examples
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu
from unusual_attention import OfCore

import conformance
from candidates.eager import EagerLayer
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import observe
from conformance.diagnosis.dissection.layer_weights import read_layer
from conformance.diagnosis.dissection.projections import ValuePath, probes, value_paths
from conformance.diagnosis.mistakes import named_mistakes
from conformance.oracle.oracle import known_weights

Heads = tuple[Tensor, Tensor, Tensor]
Weights = conformance.ProjectionWeights
ROTARY = conformance.Semantics(rotary="halves")


def even(geometry: conformance.Geometry) -> conformance.Geometry:
    """Even head sizes, as rotary positions need."""
    size = geometry.head_size + geometry.head_size % 2
    width = geometry.num_heads * size
    return geometry.replace(
        head_size=size,
        value_head_size=size,
        num_kv_heads=geometry.num_heads,
        query_size=width,
        key_size=width,
        value_size=width,
        output_size=width,
        key_length=geometry.query_length,
    )


def layer(
    *,
    weights_of: Callable[[Weights], Weights] = lambda weights: weights,
    heads_of: Callable[[Heads], Heads] = lambda heads: heads,
    weighed: Callable[[Tensor, Tensor], Tensor] | None = None,
    merged_of: Callable[[Tensor], Tensor] = golden.merge_heads,
    answer_of: Callable[[Tensor, Tensor], Tensor] = lambda answer, _tokens: answer,
    point: conformance.Semantics = golden.STANDARD,
    made: conformance.Semantics | None = None,
    sizes: Any = None,
) -> Any:
    """A layer of one input that goes wrong at some step, declared at a point."""

    def build(geometry: conformance.Geometry, weights: Weights) -> Callable[[Tensor], Tensor]:
        changed = weights_of(weights)

        def forward(x: Tensor) -> Tensor:
            heads = geometry.num_heads
            used = made or point
            projected = golden.project_tokens((x, x, x), changed, used)
            query, key, value = heads_of(golden.cut_heads(projected, heads, heads, used))
            attention = golden.attend(query, key, value, semantics=used)
            output = attention.output if weighed is None else weighed(attention.weights, value)
            answer = golden.project_output(merged_of(output), changed, used)
            return answer_of(answer, x.double()).to(x.dtype)

        return forward

    return conformance.layer(
        name="layer",
        inputs="self",
        masks=[],
        causal=None,
        empty_rows="any",
        geometry=sizes or even,
        semantics=point,
        dtypes=["float32", "bfloat16"],
    )(build)


def subject_of(function: Any, dtype: str = "float32") -> Subject:
    """What diagnosis looks at."""
    return Subject(function, dtype)


def biased(**factors: float) -> Callable[[Weights], Weights]:
    """Multiples of some biases."""

    def change(weights: Weights) -> Weights:
        changed = {name: getattr(weights, name) * factor for name, factor in factors.items()}
        return dataclasses.replace(weights, **changed)

    return change


def last_reversed(heads: Tensor) -> Tensor:
    """The last head's tokens in the reverse order."""
    return torch.cat([heads[:, :-1], heads[:, -1:].flip(2)], dim=1)


def last_from_first(heads: Heads) -> Heads:
    """The last head reads the values of the first."""
    query, key, value = heads
    return query, key, torch.cat([value[:, :-1], value[:, :1]], dim=1)


def last_asks_as_before(heads: Heads) -> Heads:
    """The last head has the queries of the one before it."""
    query, key, value = heads
    before = query[:, max(query.shape[1] - 2, 0)]
    return torch.cat([query[:, :-1], before[:, None]], dim=1), key, value


def talking(weights: Tensor, value: Tensor) -> Tensor:
    """Weights with a tenth of those of the head before."""
    return (weights + 0.1 * weights.roll(1, 1)) @ value


def queried_twice(weights: Weights) -> Weights:
    """What projects queries that are projected already."""
    matrix, bias = weights.q.double(), weights.q_bias
    assert bias is not None
    return dataclasses.replace(weights, q=matrix @ matrix, q_bias=matrix @ bias.double() + bias)


def blended(heads: Tensor) -> Tensor:
    """A tenth of each item is of the first one."""
    return golden.merge_heads(0.9 * heads + 0.1 * heads[:1], golden.STANDARD)


def heads_before_items(heads: Tensor) -> Tensor:
    """Heads that are taken for batch items where they are put side by side."""
    batch, count, length, size = heads.shape
    return heads.transpose(0, 1).transpose(1, 2).reshape(batch, length, count * size)


STATED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a multiple of a bias": (
        {"weights_of": biased(v_bias=-0.5)},
        ("the bias of the value projection is added -0.5 times",),
    ),
    "a multiple of the input": (
        {"answer_of": lambda answer, tokens: answer + 0.3 * tokens},
        ("0.3 times the query's tokens are added to the answer",),
    ),
    "another bias": (
        {"weights_of": lambda weights: dataclasses.replace(weights, q_bias=weights.k_bias)},
        ("queries with the bias of the key projection",),
    ),
    "a bias that is not scaled": (  # of heads of four channels it counts as if it were added twice
        {"weights_of": biased(q_bias=2.0), "sizes": {"head_size": 4, "value_head_size": 4}},
        ("queries whose bias is not scaled",),
    ),
    "two steps": (
        {
            "weights_of": biased(o_bias=3.0),
            "heads_of": lambda heads: (heads[0] * 1.7, heads[1], heads[2]),
        },
        ("output projection is added 3 times", "1.7 times"),
    ),
    "the keys of one head": (
        {"heads_of": lambda heads: (heads[0], last_reversed(heads[1]), heads[2])},
        ("the token counted from the end", "in the last head alone"),
    ),
    "the values of one head": (
        {"heads_of": last_from_first},
        ("head -1 meets the values of key/value head 0", "counted from the end"),
    ),
    "mixed items": (
        {"merged_of": blended},
        ("0.9 times themselves and 0.1 times those of the first batch item",),
    ),
    "the queries of one head": (
        {"heads_of": last_asks_as_before},
        ("projected queries", "in the last head alone"),
    ),
    "a function of the queries": (
        {"heads_of": lambda heads: (gelu(heads[0]), heads[1], heads[2])},
        ("queries of which the GELU is taken",),
    ),
    "weights of two heads": (
        {"weighed": talking},
        ("the weights are those of the head and 0.1 times those of the head before",),
    ),
    "channels of the merged heads": (
        {"merged_of": lambda heads: golden.merge_heads(heads).roll(1, -1)},
        ("put together with each channel one place behind its own",),
    ),
    "a projection of what is projected": (
        {"weights_of": queried_twice},
        ("the query projection is applied to what it has projected already",),
    ),
    "another base": (
        {"point": ROTARY, "made": ROTARY.replace(rotary_base=7300.0)},
        ("rotary positions of base 7300 instead of 10000",),
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("wrong", STATED, ids=str)
def test_what_a_layer_computes_instead_is_stated(wrong: str) -> None:
    """A mistake in projections or positions that is in no catalogue is told with its numbers."""
    changes, words = STATED[wrong]
    entries = diagnose(subject_of(layer(**changes)))
    assert entries
    for entry in entries:
        assert all(part in entry["text"] for part in words), entry["text"]
        assert entry["fix"]


def test_a_gate_of_the_answer_is_told_by_what_it_is_made_of() -> None:
    """The sigmoid of the query's token behind the output matrix, or the SiLU of a head's query."""

    def gated(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _core(query, key, value) * silu(query)

    (entry,) = diagnose(subject_of(layer(answer_of=lambda answer, x: answer * torch.sigmoid(x))))
    assert "the answer is multiplied by the sigmoid of the query's tokens" in entry["text"]
    same = {"geometry": {"head_size": 4, "value_head_size": 4}}
    (entry,) = diagnose(subject_of(examples.core(gated, **examples.BARE_FLOAT32, **same)))
    assert "the outputs of the heads are multiplied by the SiLU of the queries" in entry["text"]


def test_heads_taken_for_items_are_stated() -> None:
    """Where heads and items are exchanged before heads are put side by side."""
    (entry,) = diagnose(subject_of(layer(merged_of=heads_before_items)))
    assert "put together as if [B, H, L, D] were [H, B, L, D]" in entry["text"]


def test_a_right_layer_has_right_weights_and_a_right_path() -> None:
    """Where nothing is wrong the weights that are read are the golden ones, within their error."""
    subject = subject_of(layer())
    inputs = observe(subject)[0].inputs
    assert value_paths(subject, inputs) == [ValuePath()]
    reading = read_layer(subject, inputs, ValuePath())
    assert reading is not None
    assert reading.explained
    assert bool(((reading.weights - reading.attention.weights).abs() <= reading.error).all())


def test_a_known_mistake_that_is_impossible_at_some_sizes_leaves_no_probe() -> None:
    """A matrix that is not square has no transpose to be used in its place."""
    subject = subject_of(examples.layer(EagerLayer, **examples.BARE_FLOAT32))
    inputs = next(
        answer.inputs
        for answer in observe(subject)
        if len(set(known_weights(answer.inputs).o.shape)) > 1
    )
    (known, *_) = (one for one in named_mistakes() if one.name == "output-projection-transposed")
    assert probes(subject, inputs, (known,)) == []
    assert probes(subject, inputs)


def test_weights_are_read_behind_a_wrong_path() -> None:
    """Heads that are merged without moving them back do not hide the weights."""
    merged = golden.STANDARD.replace(head_merge="reinterpret")
    subject = subject_of(layer(merged_of=lambda heads: golden.merge_heads(heads, merged)))
    inputs = observe(subject)[0].inputs
    (path,) = value_paths(subject, inputs)
    assert not path.right
    reading = read_layer(subject, inputs, path)
    assert reading is not None
    assert bool(((reading.weights - reading.attention.weights).abs() <= reading.error).all())


def test_an_answer_at_random_has_no_path() -> None:
    """Nothing is stated of values that no path explains."""
    subject = subject_of(layer(answer_of=lambda answer, _tokens: torch.tanh(answer) * answer))
    assert value_paths(subject, observe(subject)[0].inputs) == []


def _unit_heads(output: Tensor) -> Tensor:
    return golden.merge_heads(torch.nn.functional.normalize(output, dim=-1))


def _normed(output: Tensor) -> Tensor:
    merged = golden.merge_heads(output)
    return torch.nn.functional.layer_norm(merged, merged.shape[-1:])


@pytest.mark.parametrize(
    ("merged_of", "name"),
    [
        (_unit_heads, "outputs of the heads: divided by their length over the channels"),
        (_normed, "merged heads: standardised over the channels"),
    ],
    ids=["each head", "merged"],
)
def test_a_function_of_what_the_output_matrix_gets_is_stated(
    merged_of: Callable[[Tensor], Tensor], name: str
) -> None:
    """Of each head, or of all side by side: a norm between the heads and their projection."""
    (entry,) = diagnose(Subject(layer(merged_of=merged_of), "float32"))
    assert entry["name"] == name
    assert entry["fix"]


def _core(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
    answer: Tensor = torch.softmax(scores, -1) @ value
    return answer


@pytest.mark.parametrize(
    ("ordered", "name"),
    [
        (lambda out: out.transpose(0, 1), "answer: axes are H, B, Lq, D"),
        (
            lambda out: out.reshape(*out.shape[:2], out.shape[3], out.shape[2]),
            "answer: numbers, one after another, are viewed as B, H, D, Lq",
        ),
    ],
    ids=["exchanged", "viewed"],
)
def test_axes_of_the_answer_in_another_order_are_stated(
    ordered: Callable[[Tensor], Tensor], name: str
) -> None:
    """Exchanged, or viewed in another shape; rows without keys are open wherever they lie."""

    @conformance.core(masks=["keep"], empty_rows="any")
    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        return ordered(_core(query, key, value, keep))

    (entry,) = diagnose(Subject(attend, "float32"))
    assert entry["name"] == name
    assert entry["fix"] == "return the answer as [B, H, Lq, D], in the order of the query's axes"


def test_an_answer_in_the_axes_of_another_layout_is_no_right_one() -> None:
    """Heads before tokens where tokens come first: wrong at all sizes, not where they are alike."""

    @conformance.core(layout="BSHD")
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _core(*(each.transpose(1, 2) for each in (query, key, value)))

    subject = Subject(attend, "float32")
    assert all(answer.margin > 1.0 for answer in observe(subject) if answer.inputs.generic)
    assert [one["name"] for one in diagnose(subject)] == ["answer-with-tokens-before-heads"]


class HeadsAlone(torch.nn.Module):
    """A layer without an output projection, whose scores go through a function of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(8, 8) for _ in "qkv")

    def forward(self, tokens: Tensor) -> Tensor:
        """The heads' answers side by side."""
        projected = (one(tokens) for one in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in projected)
        scores = query @ key.mT * 0.5
        weights = torch.softmax(scores + torch.sin(9.0 * scores), -1)
        return (weights @ value).transpose(1, 2).flatten(2)


def test_a_layer_without_an_output_projection_is_searched() -> None:
    """What nobody could name is unknown there as elsewhere, and no error ends the search."""
    torch.manual_seed(0)
    candidate = conformance.module(HeadsAlone(), inputs="self")
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"] == "unknown-mistake"


@pytest.mark.parametrize("lost", [0.0, math.nan], ids=["zeros", "NaN"])
def test_a_layer_whose_first_token_attends_nothing_is_read(lost: float) -> None:
    """The answer to a single token says no way of the values there; those to many say the keys."""

    def strict(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu()
        return scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(nan=lost) @ value

    candidate = conformance.module(OfCore(strict), causal=None)
    (entry,) = diagnose(Subject(candidate, "float32"))
    assert entry["name"].endswith("for keys at or after the query")


@pytest.mark.parametrize(
    ("of_rows", "of_others", "name"),
    [(math.nan, 0.0, "answer: NaN in rows that have a key"), (None, 7.0, "7 in rows without keys")],
)
def test_rows_that_are_all_one_number_are_told(
    of_rows: float | None, of_others: float, name: str
) -> None:
    """Those with a key, or those without, where the others are right."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None) -> Tensor:
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        kept = torch.ones_like(logits, dtype=torch.bool) if keep is None else keep
        rows = logits.masked_fill(~kept, -math.inf).softmax(-1) @ value
        made = rows if of_rows is None else torch.full_like(rows, of_rows)
        return torch.where(kept.any(-1, keepdim=True), made, of_others)

    promises = {"masks": ["keep"], "causal": None, "features": [], "empty_rows": "zeros"}
    (entry,) = diagnose(Subject(examples.core(attend, **promises), "float32"))
    assert entry["name"].endswith(name)
    assert entry["fix"]
