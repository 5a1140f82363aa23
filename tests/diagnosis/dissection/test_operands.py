"""What is made of other tokens, of another projection, or of a changed cache, is told so."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from examples import core
from torch import Tensor

import conformance
from conformance._golden import golden
from conformance.clauses.subject import Subject
from conformance.diagnosis import diagnose
from conformance.diagnosis.earlier_calls import state_entry

Weights = conformance.ProjectionWeights
Projected = tuple[Tensor, Tensor, Tensor]


def subject_of(change: Callable[[Projected, Weights], Projected], *, inputs: str) -> Subject:
    """A layer that goes on with changed projections, of three inputs or of one."""

    def one_length(geometry: conformance.Geometry) -> conformance.Geometry:
        width = geometry.num_heads * geometry.head_size
        sizes = dict.fromkeys(("query_size", "key_size", "value_size", "output_size"), width)
        return geometry.replace(
            num_kv_heads=geometry.num_heads,
            value_head_size=geometry.head_size,
            key_length=geometry.query_length,
            **sizes,
        )

    def build(geometry: conformance.Geometry, weights: Weights) -> Callable[..., Tensor]:
        heads, point = geometry.num_heads, golden.STANDARD

        def forward(*tokens: Tensor) -> Tensor:
            q, k, v = tokens * 3 if len(tokens) == 1 else tokens
            projected = change(golden.project_tokens((q, k, v), weights, point), weights)
            query, key, value = golden.cut_heads(projected, heads, heads, point)
            output = golden.attend(query, key, value, semantics=point).output
            merged = golden.merge_heads(output, point)
            return golden.project_output(merged, weights, point).to(q.dtype)

        return forward

    declared = conformance.layer(
        name="layer",
        inputs=inputs,
        masks=[],
        causal=None,
        empty_rows="any",
        geometry=one_length,
        dtypes=["float32"],
    )
    return Subject(declared(build), "float32")


def test_a_layer_of_one_input_keeps_nothing_of_an_earlier_call() -> None:
    """Keys of two calls are twice as many as its queries: that is asked for without an error."""
    wrong = subject_of(lambda p, _w: (p[0], torch.sin(p[1]), p[2]), inputs="self")
    assert state_entry(wrong) is None


def test_queries_made_of_keys_are_told_where_lengths_differ() -> None:
    """The answer has as many rows as there are keys: another shape is explained, too."""

    def build(geometry: conformance.Geometry, weights: Weights) -> Callable[..., Tensor]:
        heads, point = geometry.num_heads, golden.STANDARD

        def forward(_query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            projected = golden.project_tokens((key, key, value), weights, point)
            cut = golden.cut_heads(projected, heads, heads, point)
            merged = golden.merge_heads(golden.attend(*cut, semantics=point).output, point)
            return golden.project_output(merged, weights, point).to(key.dtype)

        return forward

    declared = conformance.layer(
        name="layer", masks=[], geometry={"query_size": "key_size"}, dtypes=["float32"]
    )
    (entry,) = diagnose(Subject(declared(build), "float32"))
    assert entry["name"] == "key-used-for-query"


CachedHeads = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _in_steps(keys: Tensor) -> Tensor:
    step = keys.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127.0
    return (keys / step).round() * step


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (lambda k, v: (k, v.roll(1, 2)), "values: those of the key before, cached ones alone"),
        (
            lambda k, v: (k * k.shape[-1] ** -0.5, v),
            "keys: multiplied by the scale of the head size, cached ones alone",
        ),
        (
            lambda k, v: (k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype)),
            "keys and values: rounded to bfloat16, cached ones alone",
        ),
        (
            lambda k, v: (_in_steps(k), v),
            "keys: rounded to int8 for each token and head, cached ones alone",
        ),
        (
            lambda k, v: (k, k if k.shape == v.shape else v),
            "values: the keys, cached ones alone",
        ),
    ],
    ids=["rolled", "scaled", "bfloat16", "int8", "keys"],
)
def test_what_becomes_of_cached_heads_is_stated(stored: CachedHeads, name: str) -> None:
    """Their place, factor and rounding, also where other weights would explain one answer."""

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
            past_key, past_value = stored(past_key, past_value)
            key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
            scores = scores.masked_fill(ones.triu(key.shape[2] - query.shape[2] + 1), -math.inf)
        return scores.softmax(-1).nan_to_num() @ value

    promises = {"masks": [], "causal": "bottom-right", "features": ["kv_cache"]}
    subject = Subject(core(attend, empty_rows="zeros", **promises), "float32")
    (entry,) = diagnose(subject)
    assert entry["name"] == name
    assert entry["fix"]
