"""Mistakes of layers that nobody listed are told: other tokens, matrices, biases and channels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

import conformance
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.battery import Observation
from conformance.diagnosis.dissection.layer_weights import read_layer
from conformance.diagnosis.layer_edits import layer_edits
from conformance.diagnosis.stage_edits import fitting

Heads = tuple[Tensor, Tensor, Tensor]
Weights = conformance.ProjectionWeights


def square(geometry: conformance.Geometry) -> conformance.Geometry:
    """Square matrices, and as many keys as queries."""
    size = geometry.head_size
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
    tokens_of: Callable[[Tensor], Tensor] = lambda tokens: tokens,
    projected_of: Callable[[Heads, Weights], Heads] = lambda projected, _weights: projected,
    merged_of: Callable[[Tensor], Tensor] = golden.merge_heads,
) -> Any:
    """A layer of one input that goes wrong at some step."""

    def build(geometry: conformance.Geometry, weights: Weights) -> Callable[[Tensor], Tensor]:
        changed = weights_of(weights)

        def forward(x: Tensor) -> Tensor:
            heads = geometry.num_heads
            tokens = tokens_of(x.double())
            projected = golden.project_tokens((tokens,) * 3, changed, golden.STANDARD)
            cut = golden.cut_heads(projected_of(projected, weights), heads, heads, golden.STANDARD)
            merged = merged_of(golden.attend(*cut).output)
            return golden.project_output(merged, changed, golden.STANDARD).to(x.dtype)

        return forward

    return conformance.layer(
        name="layer",
        inputs="self",
        masks=[],
        causal=None,
        empty_rows="any",
        geometry=square,
        dtypes=["float32"],
    )(build)


def replaced(**sources: str) -> Callable[[Weights], Weights]:
    """Some matrices and biases that are those of other projections."""

    def change(weights: Weights) -> Weights:
        return dataclasses.replace(weights, **{n: getattr(weights, o) for n, o in sources.items()})

    return change


def doubled(weights: Weights) -> Weights:
    """The bias of the values is added twice."""
    assert weights.v_bias is not None
    return dataclasses.replace(weights, v_bias=2.0 * weights.v_bias)


def read_by_channel(projected: Heads, _weights: Weights) -> Heads:
    """One product for keys and values, of which every second channel is taken for a key's."""
    both = torch.cat(projected[1:], dim=-1)
    return projected[0], both[..., 0::2], both[..., 1::2]


def keys_of_queries(projected: Heads, weights: Weights) -> Heads:
    """Keys that are projected from the projected queries."""
    key = golden.project(projected[0], weights.k, weights.k_bias)
    return projected[0], key, projected[2]


def heads_before_items(heads: Tensor) -> Tensor:
    """Heads that are taken for batch items where they are put side by side."""
    batch, count, length, size = heads.shape
    return heads.transpose(0, 1).transpose(1, 2).reshape(batch, length, count * size)


def in_turns(heads: Tensor) -> Tensor:
    """Channel d of head h in the place of d * H + h."""
    return golden.merge_heads(heads, golden.STANDARD.replace(head_merge="interleaved"))


STATED: Final[dict[str, dict[str, Any]]] = {
    "the bias of the value projection is added twice": {"weights_of": doubled},
    "the query projection adds the bias of the key projection": {
        "weights_of": replaced(q_bias="k_bias")
    },
    "the value projection has the output matrix": {"weights_of": replaced(v="o")},
    "each token of the input is normalised to mean 0 and variance 1 before it is projected": {
        "tokens_of": lambda x: layer_norm(x, x.shape[-1:])
    },
    "each token of the input is divided by its length before it is projected": {
        "tokens_of": lambda x: normalize(x, dim=-1)
    },
    "the keys are the projected values and the values are the projected keys": {
        "projected_of": lambda p, _w: (p[0], p[2], p[1])
    },
    "the keys are the projected queries, projected by the key's matrix": {
        "projected_of": keys_of_queries
    },
    (
        "the keys and values are projected by rows of one matrix for keys and values that is read "
        "channel by channel"
    ): {"projected_of": read_by_channel},
    "the heads of the answer are put together as if [B, H, L, D] were [H, B, L, D]": {
        "merged_of": heads_before_items
    },
    "the heads of the answer are put together channel by channel: channel d of head h goes to "
    "d * H + h": {"merged_of": in_turns},
}


@pytest.mark.parametrize("words", STATED, ids=str)
def test_what_a_layer_projects_otherwise_is_told(words: str) -> None:
    """Of one answer: the edits that make it are few, and what was done is one of them."""
    subject = Subject(layer(**STATED[words]), "float32")
    wrong = [one for one in Observation(subject).whole if one.margin > 1.0 and one.inputs.generic]
    answer = max(wrong, key=lambda one: one.inputs.geometry.num_heads)
    said = [one.sentence for one in fitting(list(layer_edits()), answer)]
    assert words in said
    assert len(said) < 20


def test_what_is_projected_twice_is_diagnosed() -> None:
    """What explains one answer explains all, and other values."""
    words = "the keys are the projected queries, projected by the key's matrix"
    (entry,) = diagnose(Subject(layer(**STATED[words]), "float32"))
    assert entry["text"] == words
    assert entry["fix"].startswith("project the tokens of query, key and value once")


def test_the_weights_of_a_layer_are_read_besides_a_known_edit() -> None:
    """Heads that are put together otherwise do not hide the weights from one who knows it."""
    subject = Subject(layer(merged_of=in_turns), "float32")
    known = next(one for one in layer_edits() if "channel by channel: channel" in one.sentence)
    inputs = Observation(subject).whole[0].inputs
    reading = read_layer(subject, inputs, (known,))
    assert reading is not None
    assert reading.explained
    assert bool(((reading.weights - reading.attention.weights).abs() <= reading.error).all())
    plain = read_layer(subject, inputs)
    assert plain is None or not plain.explained
