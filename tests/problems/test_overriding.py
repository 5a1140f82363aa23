from __future__ import annotations

import json

import torch
from examples import core, layer, plan, problem

from conformance.problems.materialise import changeable, materialise
from conformance.problems.problem import Overrides, problem_from_json

ONE = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "query_length": 1, "key_length": 2}
KEYS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def test_values_replace_those_that_are_drawn() -> None:
    """A named tensor has the given values, the others are drawn as before."""
    example = problem(**ONE, mask=plan())
    overrides = Overrides(seed=3).replace("key", KEYS).replace("keep", (1.0, 0.0))
    drawn = materialise(example, core())
    inputs = materialise(example.replace(overrides=overrides), core())
    assert inputs.key.flatten().tolist() == list(KEYS)
    assert inputs.keep is not None
    assert inputs.keep.flatten().tolist() == [True, False]
    assert torch.equal(inputs.query, drawn.query)
    assert not inputs.generic


def test_other_seeds_and_sizes_are_drawn() -> None:
    """What a clause makes of a problem, with another seed or size, does not get its values."""
    overrides = Overrides(seed=3).replace("key", KEYS)
    for changed in (problem(**ONE, seed=4), problem(**{**ONE, "key_length": 3})):
        drawn = materialise(changed, core())
        inputs = materialise(changed.replace(overrides=overrides), core())
        assert torch.equal(inputs.key, drawn.key)


def test_weights_of_a_layer_can_be_given() -> None:
    """The projections are overridden by their roles."""
    sizes = dict.fromkeys(("head_size", "value_head_size", "query_size", "key_size"), 1)
    example = problem(**ONE, **sizes, value_size=1, output_size=1)
    drawn = changeable(materialise(example, layer()), weights=True)
    assert {"q", "k", "v", "o", "q_bias"} <= set(drawn)
    overrides = Overrides(seed=3).replace("q", (2.0,))
    weights = materialise(example.replace(overrides=overrides), layer()).weights
    assert weights is not None
    assert weights.q.tolist() == [[2.0]]


def test_one_object_stays_one_object() -> None:
    """Self-attention has one tensor to change, and it stays query, key and value."""
    candidate = layer(inputs="self", features=[])
    example = problem(**{**ONE, "query_length": 2}, query_size=3, key_size=3, value_size=3)
    assert set(changeable(materialise(example, candidate), weights=False)) == {"key"}
    overrides = Overrides(seed=3).replace("key", KEYS)
    inputs = materialise(example.replace(overrides=overrides), candidate)
    assert inputs.query is inputs.key is inputs.value


def test_overrides_survive_the_report() -> None:
    """Plain data and back gives the same problem, infinities included."""
    overrides = Overrides(seed=3).replace("bias", (float("-inf"), 0.5))
    example = problem(overrides=overrides)
    text = json.dumps(example.as_json()).replace("-Infinity", '"-inf"')
    assert problem_from_json(json.loads(text)) == example
