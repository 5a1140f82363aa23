"""Covering arrays: every combination that can be is there, and what cannot be has a reason."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.problems.covering import CoveringParameter, Model, Rule, alone, cover

MODEL = Model(
    (
        CoveringParameter("mask", ("none", "keep", "lengths")),
        CoveringParameter("shape", ("none", "BHQK", "B")),
        CoveringParameter("flag", ("no", "yes")),
        CoveringParameter("cache", ("none", "some")),
    ),
    (
        Rule("no mask has no shape", (("mask", ("none",)), ("shape", ("BHQK", "B")))),
        Rule("a mask has a shape", (("mask", ("keep", "lengths")), ("shape", ("none",)))),
        Rule("lengths have another", (("mask", ("lengths",)), ("shape", ("BHQK",)))),
        Rule("keep has another", (("mask", ("keep",)), ("shape", ("B",)))),
        Rule("not three", (("mask", ("keep",)), ("flag", ("yes",)), ("cache", ("some",)))),
    ),
)


def whole_rows(model: Model) -> list[tuple[str, ...]]:
    """Every row that breaks no rule, by trying all."""
    names = [parameter.name for parameter in model.parameters]

    def fits(row: tuple[str, ...]) -> bool:
        held = dict(zip(names, row, strict=True))
        return not any(all(held[n] in values for n, values in r.sides) for r in model.rules)

    return [row for row in itertools.product(*(p.values for p in model.parameters)) if fits(row)]


def combinations(rows: list[tuple[str, ...]], strength: int) -> set[object]:
    """What meets in some rows."""
    places = list(itertools.combinations(range(len(rows[0])), strength)) if rows else []
    return {(some, tuple(row[place] for place in some)) for row in rows for some in places}


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Up to five parameters with rules between any two or three of their values."""
    sizes = draw(st.lists(st.integers(2, 3), min_size=2, max_size=5))
    parameters = tuple(
        CoveringParameter(f"p{n}", tuple(f"v{v}" for v in range(size)))
        for n, size in enumerate(sizes)
    )
    side = st.sampled_from(parameters).flatmap(
        lambda p: st.tuples(st.just(p.name), st.sets(st.sampled_from(p.values), min_size=1))
    )
    sides = st.lists(side, min_size=2, max_size=3, unique_by=lambda one: one[0])
    rules = draw(st.lists(sides, max_size=4))
    return Model(
        parameters,
        tuple(Rule("drawn", tuple((n, tuple(sorted(v))) for n, v in one)) for one in rules),
    )


@settings(max_examples=60, deadline=None)
@given(models(), st.integers(1, 3))
def test_everything_that_can_meet_does(model: Model, strength: int) -> None:
    """The rows cover what all whole rows hold, break no rule, and are counted rightly."""
    every = whole_rows(model)
    strength = min(strength, len(model.parameters))
    if not every:
        return
    covering = cover(model, strength)
    possible = combinations(every, strength)
    assert set(covering.rows) <= set(every)
    assert combinations(list(covering.rows), strength) == possible
    assert covering.combinations == sum(covering.fresh) == len(possible)
    parts = itertools.combinations([len(p.values) for p in model.parameters], strength)
    whole = sum(int(__import__("math").prod(sizes)) for sizes in parts)
    assert sum(covering.impossible.values()) == whole - len(possible)


def test_what_cannot_meet_has_its_reason() -> None:
    """A rule that is broken is named, and so are those that leave no other value."""
    impossible = cover(MODEL, 2).impossible
    assert impossible["no mask has no shape"] == 2
    assert impossible["lengths have another"] == 1
    assert cover(MODEL, 3).impossible["not three"] == 1


@pytest.mark.parametrize("strength", [2, 3])
def test_same_model_gives_the_same_rows_and_the_plainest_first(strength: int) -> None:
    """Rows depend on nothing but the model."""
    rows = cover(MODEL, strength).rows
    cover.cache_clear()
    assert cover(MODEL, strength).rows == rows
    assert rows[0] == ("none", "none", "no", "none")


def test_each_value_alone() -> None:
    """One row for each value, as plain as the rules allow."""
    assert ("lengths", "B", "no", "none") in alone(MODEL)
    assert ("none", "none", "yes", "none") in alone(MODEL)
    assert len(alone(MODEL)) == 5
