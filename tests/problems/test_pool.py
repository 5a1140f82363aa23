from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from declared import CANDIDATES, core
from examples import SMALL

from conformance.base.geometry import Geometry
from conformance.base.profile import PROFILES
from conformance.problems.edges import edge_problems
from conformance.problems.materialise import materialise
from conformance.problems.pool import Pool
from conformance.problems.problem import Problem, problem_from_json
from conformance.problems.space import Space
from conformance.problems.strategies import draw_problems


@pytest.mark.parametrize("examples", [1, 6, 40])
def test_as_many_problems_as_the_profile_asks(examples: int) -> None:
    """A pool holds at least the examples of the profile."""
    profile = dataclasses.replace(SMALL, examples=examples)
    assert len(Pool(CANDIDATES["core"], profile, 0).problems(Space(), "float32")) >= examples


def test_edges_come_first() -> None:
    """The edges open every space, and something is drawn after them."""
    space = Space(mask="maybe")
    edges = edge_problems(CANDIDATES["core"], space, dtype="float64")
    problems = Pool(CANDIDATES["core"], SMALL, 0).problems(space, "float64")
    assert problems[: len(edges)] == edges
    assert len(problems) > len(edges)


@pytest.mark.parametrize("name", ["core with everything", "layer of itself"])
def test_nothing_is_drawn_while_edges_are_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems in turn are those of the space: none is drawn before it is asked for."""
    profile = dataclasses.replace(SMALL, examples=9)
    space = Space(mask="maybe", edges="combinations")
    every = Pool(CANDIDATES[name], profile, 0).problems(space, "float32")
    pool = Pool(CANDIDATES[name], profile, 0)
    drawn: list[int] = []

    def counted(*arguments: Any, **keywords: Any) -> list[Problem]:
        drawn.append(keywords["count"])
        return draw_problems(*arguments, **keywords)

    monkeypatch.setattr("conformance.problems.pool.draw_problems", counted)
    turn = pool.in_turn(space, "float32")
    edges = edge_problems(CANDIDATES[name], space, dtype="float32", strength=profile.strength)
    assert [next(turn) for _ in edges] == every[: len(edges)]
    assert drawn == []
    assert list(turn) == every[len(edges) :]
    assert drawn == [len(every) - len(edges)]
    assert pool.count(space, "float32") == len(every)


def test_first_problem_is_made_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the combined options is known before a covering array is sought."""
    space = Space(mask="maybe", edges="combinations")
    candidate = CANDIDATES["core with everything"]
    expected = Pool(candidate, SMALL, 0).problems(space, "float32")

    def unexpected(*_arguments: Any, **_keywords: Any) -> None:
        pytest.fail("a covering array was sought")

    pool = Pool(candidate, SMALL, 0)
    with monkeypatch.context() as patched:
        patched.setattr("conformance.problems.combinations.cover", unexpected)
        assert next(pool.in_turn(space, "float32")) == expected[0]
        with pytest.raises(pytest.fail.Exception, match="was sought"):
            list(pool.in_turn(space, "float32"))
    assert list(pool.in_turn(space, "float32")) == expected  # an interrupted turn loses nothing


def test_problems_of_a_space_are_shared() -> None:
    """Two clauses of one space see the very same problems, another dtype others."""
    pool = Pool(CANDIDATES["core"], SMALL, 0)
    assert pool.problems(Space(), "float32") is pool.problems(Space(), "float32")
    assert {p.dtype for p in pool.problems(Space(), "float64")} == {"float64"}


def test_seed_of_the_run_decides() -> None:
    """The same seed gives the same pool in another run, another seed another one."""

    def found(seed: int) -> object:
        profile = dataclasses.replace(SMALL, examples=20)
        return Pool(CANDIDATES["layer"], profile, seed).problems(Space(), "float32")

    assert found(1) == found(1)
    assert found(1) != found(2)


@pytest.mark.parametrize("seed", [2**31 - 1, 2**63, 10**30])
def test_any_seed_of_a_run_gives_problems_that_can_be_rebuilt(seed: int) -> None:
    """However large the seed of a run is, its problems have seeds that generators take."""
    isolated = dataclasses.replace(core(), isolated=True)
    for problem in Pool(isolated, SMALL, seed).problems(Space(), "float32"):
        again = problem_from_json(problem.as_json())
        assert torch.equal(materialise(again, isolated).query, materialise(problem, isolated).query)


def test_problems_outside_the_space_are_left_out() -> None:
    """A geometry function may leave a space: what it makes then is not tried."""

    def build(geometry: Geometry) -> Geometry:
        return geometry.replace(key_length=1)

    pool = Pool(core(geometry=build), SMALL, 0)
    assert pool.problems(Space(), "float32")
    assert pool.problems(Space(least=(("key_length", 2),)), "float32") == []


@pytest.mark.parametrize(("share", "wanted"), [(0.25, 10), (0.5, 20), (0.01, 1)])
def test_share_limits_the_examples(share: float, wanted: int) -> None:
    """A space with a share gets that part of the examples, and one at least."""
    profile = dataclasses.replace(SMALL, examples=40)
    pool = Pool(CANDIDATES["core"], profile, 0)
    assert len(pool.problems(Space(share=share), "float32")) == wanted
    assert len(pool.problems(Space(), "float32")) >= 40


def test_share_leaves_both_edges_and_drawn_problems() -> None:
    """Half of a share are edges, the same in every run; the other half differs with the seed."""

    def found(seed: int) -> list[Problem]:
        profile = dataclasses.replace(SMALL, examples=40)
        return Pool(CANDIDATES["core"], profile, seed).problems(Space(share=0.25), "float32")

    one, two = found(1), found(2)
    assert one[:5] == two[:5]
    assert len(set(one) & set(two)) <= len(one) - 3


def test_further_dtypes_get_half_of_the_examples() -> None:
    """The dtype that is asked for first is tried in full, another with its edges and fewer more."""
    profile = dataclasses.replace(SMALL, examples=100)
    pool = Pool(CANDIDATES["core"], profile, 0)
    assert len(pool.problems(Space(), "float64")) == 100
    others = pool.problems(Space(), "float32")
    edges = edge_problems(CANDIDATES["core"], Space(), dtype="float32")
    assert len(others) == max(50, len(edges) + 13)
    assert others[: len(edges)] == edges


def test_further_problems_are_others() -> None:
    """What is asked further has not been asked, in the dtype and on the device of the rest."""
    pool = Pool(CANDIDATES["core"], SMALL, 0)
    further = pool.further(Space(mask="maybe"), "float16")
    assert further
    assert not set(further) & set(pool.problems(Space(mask="maybe"), "float16"))
    assert {(problem.dtype, problem.device) for problem in further} == {("float16", "cpu")}


def test_smoke_asks_one_to_three_examples() -> None:
    """Every space has one to three problems, also where an array of combinations is wanted."""
    candidate = CANDIDATES["core with everything"]
    for edges in ("sizes", "combinations", "tiles"):
        pool = Pool(candidate, PROFILES["smoke"], 0)
        space = Space(mask="maybe", edges=edges)
        assert 1 <= len(pool.problems(space, "float32")) <= 3
        assert [*pool.in_turn(space, "float32")] == pool.problems(space, "float32")
