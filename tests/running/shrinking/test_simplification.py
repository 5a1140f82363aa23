from __future__ import annotations

import math

import pytest
from examples import problem

from conformance.problems.problem import Problem
from conformance.running.shrinking.smallest import round_small, simplify_values

TRIES = 200


def value_of(example: Problem, name: str, drawn: tuple[float, ...]) -> tuple[float, ...]:
    """The values of a tensor of an example, overridden or as drawn."""
    override = None if example.overrides is None else example.overrides.value(name)
    return drawn if override is None else override


def test_what_need_not_be_is_zero() -> None:
    """Only the element that makes it fail stays, as a small integer where that suffices."""
    drawn = {"key": (0.3, -7.4, 2.2), "query": (1.5,)}

    def fails(example: Problem) -> bool:
        return value_of(example, "key", drawn["key"])[1] < -2.5

    simplified, used = simplify_values(problem(), drawn, fails, tries=TRIES)
    assert simplified.overrides is not None
    assert simplified.overrides.value("query") == (0.0,)
    assert simplified.overrides.value("key") == (0.0, -3.0, 0.0)
    assert 0 < used <= TRIES


def test_fraction_stays_where_it_is_needed() -> None:
    """A number that no integer replaces stays as it was drawn."""
    drawn = {"value": (0.25,)}

    def fails(example: Problem) -> bool:
        return value_of(example, "value", drawn["value"]) == (0.25,)

    simplified, _ = simplify_values(problem(), drawn, fails, tries=TRIES)
    assert simplified == problem()


def test_mask_only_ever_keeps_more() -> None:
    """A kept key is never hidden: rows without keys are another failure."""
    drawn = {"keep": (1.0, 0.0, 0.0)}

    def fails(example: Problem) -> bool:
        return value_of(example, "keep", drawn["keep"])[2] == 0.0

    simplified, _ = simplify_values(problem(), drawn, fails, tries=TRIES)
    assert value_of(simplified, "keep", drawn["keep"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("tries", [0, 1, 3])
def test_tries_are_limited(tries: int) -> None:
    """No more problems are tried than allowed."""
    tried: list[Problem] = []

    def fails(example: Problem) -> bool:
        tried.append(example)
        return False

    _, used = simplify_values(problem(), {"key": (0.3, 0.4)}, fails, tries=tries)
    assert len(tried) == used == tries


def test_many_values_stay_as_they_are() -> None:
    """Nobody reads more than 64 numbers: none of them is tried."""
    simplified, used = simplify_values(problem(), {"key": (0.5,) * 65}, lambda _: True, tries=TRIES)
    assert (simplified, used) == (problem(), 0)


def test_rounding_keeps_what_is_not_finite() -> None:
    """Infinities stay, others become integers of at most three in size."""
    assert [round_small(value) for value in (0.4, -9.0, 2.6)] == [0.0, -3.0, 3.0]
    assert round_small(-math.inf) == -math.inf
