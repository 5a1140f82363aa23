from __future__ import annotations

import dataclasses

import pytest
from declared import CANDIDATES, core
from examples import SMALL

from conformance.edges import edge_problems
from conformance.geometry import Geometry
from conformance.pool import Pool
from conformance.space import Space


@pytest.mark.parametrize("examples", [1, 6, 40])
def test_as_many_problems_as_the_profile_asks(examples: int) -> None:
    """A pool holds at least the examples of the profile."""
    profile = dataclasses.replace(SMALL, examples=examples)
    assert len(Pool(CANDIDATES["core"], profile, 0).problems(Space(), "float32")) >= examples


def test_edges_come_first() -> None:
    """The edges open every space, and something is drawn after them."""
    space = Space(mask="maybe")
    edges = edge_problems(CANDIDATES["core"], space, dtype="float64")
    found = Pool(CANDIDATES["core"], SMALL, 0).problems(space, "float64")
    assert found[: len(edges)] == edges
    assert len(found) > len(edges)


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


def test_problems_outside_the_space_are_left_out() -> None:
    """A geometry function may leave a space: what it makes then is not tried."""

    def build(geometry: Geometry) -> Geometry:
        return geometry.replace(key_length=1)

    pool = Pool(core(geometry=build), SMALL, 0)
    assert pool.problems(Space(), "float32")
    assert pool.problems(Space(least=(("key_length", 2),)), "float32") == []
