from __future__ import annotations

import json
import math
from typing import Any

import pytest
from examples import plan, problem
from refusals import refused

from conformance.problems.problem import Problem, problem_from_json

PROBLEMS = [
    problem(),
    problem(mask=plan("empty-rows", "bias", "B11K", finite_bias=True), window=(1, -1), scale=0.25),
    problem(causal=True, softcap=30.0, biases=False, values="tiny", device="cuda:0"),
]


@pytest.mark.parametrize("made", PROBLEMS)
def test_problem_survives_json(made: Problem) -> None:
    """A problem written as JSON text and read again is the same problem, tuples and all."""
    again = problem_from_json(json.loads(json.dumps(made.as_json())))
    assert again == made
    assert hash(again) == hash(made)


def test_unknown_field_is_refused() -> None:
    """A problem of another version is not read as something else."""
    with pytest.raises(TypeError):
        problem_from_json({**problem().as_json(), "colour": "red"})


EDITED: dict[str, tuple[dict[str, Any], str]] = {
    "a dtype": ({"dtype": "float99"}, "its dtype is 'float99'"),
    "a text for a number": ({"seed": "x"}, "its seed is 'x'"),
    "a number for a text": ({"values": 3}, "its values is 3"),
    "a text for a flag": ({"causal": "yes"}, "its causal is 'yes'"),
    "a seed beyond generators": ({"seed": 2**70}, "its seed is 1180591620717411303424"),
    "one side": ({"window": [1]}, "its window is (1,)"),
    "no scale": ({"scale": math.inf}, "its scale is inf"),
    "a negative cap": ({"softcap": -1.0}, "its softcap is -1.0"),
    "all dropped": ({"dropout": 1.0}, "its dropout is 1.0"),
    "a negative size": ({"geometry": {"batch": -1}}, "its batch is -1"),
    "half a size": ({"geometry": {"batch": 1.5}}, "its batch is 1.5"),
    "no heads": ({"geometry": {"num_kv_heads": 0}}, "its num_kv_heads is 0"),
    "heads": ({"geometry": {"num_heads": 3, "num_kv_heads": 2}}, "3 heads share 2 key heads"),
    "no channels": ({"geometry": {"head_size": 0}}, "its head_size is 0"),
    "no values": ({"geometry": {"value_head_size": 0}}, "its value_head_size is 0"),
    "no width": ({"geometry": {"output_size": 0}}, "its output_size is 0"),
    "shared": ({"shared": "foo"}, "its shared is 'foo'"),
    "a mask's form": (
        {"mask": {"pattern": "full", "form": "zzz", "shape": "BHQK"}},
        "its mask's form is 'zzz'",
    ),
    "a mask's axes": (
        {"mask": {"pattern": "full", "form": "keep", "shape": "??"}},
        "its mask's shape is '??'",
    ),
    "too large": (
        {"geometry": {"query_length": 10**6, "key_length": 10**6}},
        "its tensors would have more than 268,435,456 elements",
    ),
    "too wide": (
        {"geometry": {"query_size": 10**6}},
        "its weights would have more than 268,435,456 elements",
    ),
    "a mask": ({"mask": {"pattern": 3, "form": "keep", "shape": "BHQK"}}, "its pattern is 3"),
}


@pytest.mark.parametrize(("changes", "sentence"), EDITED.values(), ids=EDITED.keys())
def test_values_that_no_problem_has(changes: dict[str, Any], sentence: str) -> None:
    """A record that was edited is not run: each value is of its kind and of a size that can be."""
    data = problem().as_json()
    sizes = {**data["geometry"], **changes.get("geometry", {})}
    with refused(sentence):
        problem_from_json({**data, **changes, "geometry": sizes})


@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [
        ({"geometry"}, "its geometry is missing"),
        ({"tensors"}, "its tensors is missing"),
        ({"seed"}, "its seed is missing"),
    ],
)
def test_what_is_missing_is_named(lacking: set[str], sentence: str) -> None:
    """A record that lacks a part of a problem says which."""
    overrides = {"seed": 1, "tensors": []}
    data = problem().as_json() | {
        "overrides": {name: part for name, part in overrides.items() if name not in lacking}
    }
    kept = {name: part for name, part in data.items() if name not in lacking - {"seed"}}
    with refused(sentence, TypeError):
        problem_from_json(kept)


def test_replace_leaves_the_original() -> None:
    """Problems are values: changing one makes another."""
    first = problem()
    assert first.replace(seed=9).seed == 9
    assert first.seed == 3
