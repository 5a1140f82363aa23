from __future__ import annotations

import json

import pytest
from examples import plan, problem

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


def test_replace_leaves_the_original() -> None:
    """Problems are values: changing one makes another."""
    first = problem()
    assert first.replace(seed=9).seed == 9
    assert first.seed == 3
