"""Positions of a call: which are drawn, how they are handed over, what refuses them."""

# ruff: noqa: ARG005 (parameters are what is declared)
from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import conformance
from candidates.given_positions import HALVES, LINEAR, placed_halves, placed_layer
from conformance.base.geometry import Geometry
from conformance.calls.calling import arguments
from conformance.declare.candidate import Candidate
from conformance.errors import DeclarationError
from conformance.problems.caching import cached
from conformance.problems.inputs import Inputs
from conformance.problems.materialise import materialise
from conformance.problems.problem import Problem

SIZES: dict[str, int] = {
    "batch": 3,
    "num_heads": 2,
    "num_kv_heads": 2,
    "query_length": 4,
    "key_length": 6,
    "head_size": 4,
    "value_head_size": 3,
    "query_size": 5,
    "key_size": 5,
    "value_size": 5,
    "output_size": 5,
}


def drawn(candidate: Candidate, seed: int = 0, **sizes: int) -> Inputs:
    """The inputs of one problem."""
    geometry = Geometry(**{**SIZES, **sizes})
    return materialise(Problem(geometry=geometry, dtype="float64", seed=seed), candidate)


def positions_of(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The positions of queries and keys."""
    given = inputs.given_positions
    assert given is not None
    return given


def test_positions_come_in_their_declared_keywords() -> None:
    """Two of a core, for all keys; one of a call on one input, for its own tokens."""
    keywords = arguments(drawn(placed_halves))[1]
    assert {name: (tuple(each.shape), each.dtype) for name, each in keywords.items()} == {
        "query_positions": ((3, 4), torch.int64),
        "key_positions": ((3, 6), torch.int64),
    }
    of_itself = drawn(placed_layer, query_length=6)
    keys = positions_of(of_itself)[1]
    assert torch.equal(arguments(of_itself)[1]["positions"], keys)
    later = arguments(cached(of_itself, 2, placed_layer))[1]
    assert torch.equal(later["positions"], keys[:, 2:])
    assert {*later} == {"positions", "past_key", "past_value"}


def test_cached_keys_come_turned_where_a_call_does_not_place_them() -> None:
    """Keys of a core are given as they are: the call says where they stand."""
    core = drawn(placed_halves)
    assert torch.equal(arguments(cached(core, 2, placed_halves))[1]["past_key"], core.key[:, :, :2])
    layer = drawn(placed_layer, query_length=6)
    whole = layer.weights
    assert whole is not None
    projected = torch.nn.functional.linear(layer.key, whole.k, whole.k_bias)
    heads = projected.unflatten(-1, (2, -1)).transpose(1, 2)
    turned = placed_halves.function.turn(heads, positions_of(layer)[1])
    given = arguments(cached(layer, 2, placed_layer))[1]["past_key"]
    torch.testing.assert_close(given, turned[:, :, :2])


def test_every_kind_of_positions_is_drawn() -> None:
    """Offsets, gaps, restarts, padding, rings; from zero in few problems; never negative."""
    seen = set()
    for seed in range(60):
        keys = positions_of(drawn(placed_halves, seed))[1]
        assert int(keys.min()) >= 0
        step = keys.diff(dim=1)
        seen |= {"offset"} if bool((keys[:, 0] > 20).any() & (step == 1).all()) else set()
        seen |= {"gap"} if bool((step > 1).any()) else set()
        seen |= {"backwards"} if bool((step < 0).any()) else set()
        seen |= {"padding"} if bool((keys[:, :2] == 0).all(dim=1).any()) else set()
        seen |= {"items"} if not bool((keys == keys[:1]).all()) else set()
        seen |= {"zero"} if bool((keys == torch.arange(6)).all()) else set()
    assert seen == {"offset", "gap", "backwards", "padding", "items", "zero"}


def test_positions_stay_within_a_declared_longest_length() -> None:
    """A table of positions has no more rows."""
    short = conformance.core(features=["positions"], semantics=HALVES, max_length=16)(
        placed_halves.function
    )
    assert all(int(positions_of(drawn(short, seed))[1].max()) < 16 for seed in range(12))


def test_positions_stay_with_their_tokens() -> None:
    """Of fewer keys, other items and some queries."""
    inputs = drawn(placed_halves, seed=3)
    queries, keys = positions_of(inputs)
    assert inputs.positions is not None
    fewer = inputs.with_tokens(key=inputs.key[:, :, :3], value=inputs.value[:, :, :3])
    assert torch.equal(positions_of(fewer)[1], keys[:, :3])
    order = torch.tensor([2, 0, 1])
    moved = inputs.replace(positions=inputs.positions.of_items(order))
    assert torch.equal(positions_of(moved)[0], queries[order])
    turned = inputs.replace(positions=inputs.positions.of_keys(torch.arange(6).flip(0)))
    assert torch.equal(positions_of(turned)[1], keys.flip(1))


PLACED: dict[str, Any] = {"features": ["positions"], "semantics": HALVES}


@pytest.mark.parametrize(
    ("promises", "words"),
    [
        ({"features": ["positions"]}, "but nothing goes by positions"),
        ({"causal_by": "positions"}, "where no call gives positions"),
        ({**PLACED, "causal_by": "places in memory"}, "causal_by is 'places in memory', which is"),
        (
            {**PLACED, "semantics": HALVES.replace(causal_by="positions"), "causal_by": "places"},
            "causal_by is 'places' but semantics says causal_by='positions': drop one",
        ),
        ({**PLACED, "layout": "varlen"}, "features has 'positions' with layout='varlen'"),
        (
            {**PLACED, "rotary_tables": "cos-sin"},
            "'positions' with rotary_tables='cos-sin'",
        ),
        (
            {**PLACED, "causal_by": "positions", "masks": ["prefix"]},
            "masks has 'prefix' with causal_by='positions'",
        ),
    ],
)
def test_what_cannot_be_declared_is_said(promises: dict[str, Any], words: str) -> None:
    """In one sentence that names the promise."""
    with pytest.raises(DeclarationError, match=re.escape(words)):
        conformance.core(**promises)(lambda query, key, value, **_more: query)


def test_distances_to_cached_keys_need_their_positions() -> None:
    """A call on one input gives those of its own tokens alone."""
    features = ["positions", "kv_cache"]
    with pytest.raises(DeclarationError, match="do not say where the cached keys stand"):
        conformance.layer(inputs="self", features=features, semantics=LINEAR)(lambda *_: None)
